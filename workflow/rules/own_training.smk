# your own training -> what makes it faster, and what to change in its script
if STUDY.task.kind == "import":

    rule own_training:
        input:
            study="results/study.json",
            spec=f"results/runs/{STUDY.baseline}/spec.json",
        output:
            result="results/own_training/results.json",
            page="results/own_training/report.md",
            changes="results/own_training/changes.diff",
        log:
            "results/logs/own_training.log",
        # All cores and the one slot: nothing else may disturb the timing.
        threads: CORES
        resources:
            **needs(lambda wildcards: [on_all_devices(STUDY.machine, "machine")]),
            timed=1,
        params:
            code=CODE["own_training"],
            again=lambda wildcards: failures("results/own_training/results.json"),
            own=own_models(SPECS.values()),
        message:
            "Find out what makes {STUDY.task.factory} faster"
        shell:
            "python -m transformer_core.own_training.job --study {input.study} --spec {input.spec}"
            " --output {output.result} --code {params.code} --log-file {log}"

    rule own_profiles:
        input:
            study="results/study.json",
            spec=f"results/runs/{STUDY.baseline}/spec.json",
            found="results/own_training/results.json",
        output:
            "results/own_training/profiles.json",
        log:
            "results/logs/own_profiles.log",
        # Other work at the time would show in the trace.
        threads: CORES
        resources:
            **needs(lambda wildcards: [on_all_devices(STUDY.machine, "machine")]),
            timed=1,
        params:
            code=CODE["own_profiles"],
            own=own_models(SPECS.values()),
        message:
            "Profile {STUDY.task.factory}, as it is and as recommended"
        shell:
            "python -m transformer_core.own_training.profiled.job --study {input.study}"
            " --spec {input.spec} --results {input.found} --output {output} --log-file {log}"

    rule own_page:
        input:
            study="results/study.json",
            found="results/own_training/results.json",
            changes="results/own_training/changes.diff",
            profiles="results/own_training/profiles.json",
        output:
            "results/report.html",
        log:
            "results/logs/own_page.log",
        params:
            code=CODE["own_page"],
        message:
            "Write the report: results/report.html"
        shell:
            "python -m transformer_core.report.own_training.own_page --results results"
            " --output {output} 2>&1 | tee {log}"

    # Only one page may have that name: the one above.
    ruleorder: own_page > page

    localrules:
        own_page,
