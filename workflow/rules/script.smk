# your own training, a script or a function -> changes that make it faster
if own_targets(STUDY):
    TUNED = STUDY.task.factory if STUDY.task.kind == "import" else shlex.join(STUDY.task.command)

    rule tune:
        input:
            study="results/study.json",
            spec=f"results/runs/{STUDY.baseline}/spec.json",
        output:
            "results/tune/answer.json",
            changes="results/tune/changes.diff",
        log:
            "results/logs/tune.log",
        threads: CORES
        resources:
            **needs(lambda wildcards: [ALL_DEVICES], STUDY.tuning_seconds),
            timed=1,
        params:
            **job("tune", of=every_spec, code=CODE["tune"]),
            script=as_text(script_files(STUDY.task)),
            environment=as_text(variables_of_speed()),
        message:
            "Find out what makes {TUNED} faster"
        shell:
            JOB

    rule tune_page:
        input:
            study="results/study.json",
            answer="results/tune/answer.json",
        output:
            "results/report.html",
            brief="results/report.md",
        log:
            "results/logs/tune_page.log",
        params:
            **job("tune_page"),
        message:
            "Write the report: results/report.html"
        shell:
            JOB

    # Two rules make this file: prefer the one above.
    ruleorder: tune_page > page

    localrules:
        tune_page,
