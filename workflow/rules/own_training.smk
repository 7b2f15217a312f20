# a training of the user's own -> what makes it faster, and what to change in its script
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
        # All cores and the one slot: nothing else may disturb what is timed.
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
