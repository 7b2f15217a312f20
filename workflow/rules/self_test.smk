# one run spec against itself, also slowed on purpose -> what comparisons detect on this machine


rule self_test_sessions:
    input:
        spec=f"results/runs/{STUDY.baseline}/spec.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        "results/self_test/sessions.json",
    log:
        "results/logs/self_test_sessions.log",
    # All cores and the one slot: nothing else may disturb a timed run.
    threads: CORES
    resources:
        **needs(lambda wildcards: [SPECS[STUDY.baseline]]),
        timed=1,
    params:
        code=CODE["self_test_sessions"],
        own=own_models([SPECS[STUDY.baseline]]),
        asked=asked(STUDY.self_test, COMPARING),
        order=lambda wildcards, input, output: order(
            "self_test",
            spec=input.spec,
            data=data_of(input),
            output=output[0],
            self_test=STUDY.self_test,
            comparing=COMPARING,
            target="results/self_test/report.json",
        ),
    message:
        "Compare {STUDY.baseline} with itself, as it is and slowed down"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule self_test:
    input:
        sessions="results/self_test/sessions.json",
    output:
        "results/self_test/report.json",
    log:
        "results/logs/self_test.log",
    params:
        code=CODE["self_test"],
        asked=asked(STUDY.comparison.margin, len(PAIRS)),
        order=lambda wildcards, input, output: order(
            "self_test_report",
            sessions=input.sessions,
            together=len(PAIRS),
            margin=STUDY.comparison.margin,
            output=output[0],
        ),
    message:
        "Evaluate the comparison protocol"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
