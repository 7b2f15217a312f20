# one run spec against itself, also slowed on purpose -> what comparisons detect on this machine

TESTED = 1 + len(STUDY.self_test.planted)  # sides of a session


rule self_test_sessions:
    input:
        spec=f"results/runs/{STUDY.baseline}/spec.json",
        shards=SHARDS,
    output:
        "results/self_test/sessions.json",
    log:
        "results/logs/self_test_sessions.log",
    threads: CORES
    resources:
        **needs(baseline_spec, STUDY.self_test.comparisons * TESTED * OF_A_SIDE, TESTED),
        timed=1,
    params:
        **job(
            "self_test_sessions",
            of=baseline_spec,
            self_test=STUDY.self_test,
            comparing=COMPARING,
            target="results/self_test/report.json",
            code=CODE["self_test_sessions"],
        ),
    message:
        "Compare {STUDY.baseline} with itself, as it is and slowed down"
    shell:
        JOB


rule self_test:
    input:
        sessions="results/self_test/sessions.json",
    output:
        "results/self_test/report.json",
    log:
        "results/logs/self_test.log",
    params:
        **job("self_test", together=len(PAIRS), margin=STUDY.comparison.margin),
    message:
        "Evaluate the comparison protocol"
    shell:
        JOB
