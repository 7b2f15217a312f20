# your own training, a script or a function -> what makes it faster, and what to change in it
if own_targets(STUDY):
    TUNED = STUDY.task.factory if STUDY.task.kind == "import" else shlex.join(STUDY.task.command)

    rule tune:
        input:
            study="results/study.json",
            spec=f"results/runs/{STUDY.baseline}/spec.json",
        output:
            answer="results/tune/answer.json",
            changes="results/tune/changes.diff",
        log:
            "results/logs/tune.log",
        # All cores and the one slot: nothing else may disturb the timing.
        threads: CORES
        resources:
            **needs(lambda wildcards: [on_all_devices(STUDY.machine, "machine")]),
            timed=1,
        params:
            code=CODE["tune"],
            again=lambda wildcards: failures("results/tune/answer.json"),
            script=script_files(STUDY.task),
            own=own_models(SPECS.values()),
        message:
            "Find out what makes {TUNED} faster"
        shell:
            "python -m transformer_core.tune.job --study {input.study} --spec {input.spec}"
            " --output {output.answer} --changes {output.changes} --log-file {log}"

    rule tune_page:
        input:
            study="results/study.json",
            answer="results/tune/answer.json",
        output:
            page="results/report.html",
            brief="results/report.md",
        log:
            "results/logs/tune_page.log",
        params:
            code=CODE["tune_page"],
        message:
            "Write the report: results/report.html"
        shell:
            "python -m transformer_core.report.tune_page --study {input.study}"
            " --answer {input.answer} --output {output.page} --brief {output.brief} 2>&1 | tee {log}"

    # Only one page may have that name: the one above.
    ruleorder: tune_page > page

    localrules:
        tune_page,
