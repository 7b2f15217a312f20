# variants and their reference, timed in turns -> ratios and verdicts


rule turns:
    input:
        specs=lambda wildcards: [
            f"results/runs/{spec.variant}/spec.json" for spec in sides(wildcards)
        ],
        shards=SHARDS,
    output:
        # <variant>/<reference>.json of each of its comparisons
        directory("results/turns/{group}"),
    log:
        "results/logs/turns/{group}.log",
    threads: CORES
    resources:
        **needs(sides, OF_A_SIDE * TOGETHER),
        timed=1,
    params:
        **job(
            "turns",
            of=sides,
            again="results/turns/{group}",
            output=None,
            comparing=COMPARING,
            pairs=lambda wildcards: TURNS[wildcards.group].records(),
            outputs=lambda wildcards, output: [
                f"{output[0]}/{pair}.json" for pair in TURNS[wildcards.group].records()
            ],
            target=lambda wildcards, output: output[0],
            sessions=lambda wildcards, output: f"{output[0]}.sessions",
            code=CODE["turns"],
        ),
    message:
        "Time {wildcards.group} in turns"
    shell:
        JOB


# If the study has a time limit, undecided comparisons continue when everything else is done.
if STUDY.time is not None:

    rule refine:
        input:
            [f"results/turns/{group}" for group in TURNS],
            lambda wildcards: DONE_FIRST,
            specs=expand("results/runs/{variant}/spec.json", variant=SPECS),
            certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
            shards=SHARDS,
        output:
            "results/refinement.json",
            # <variant>/<reference>.json
            records=directory(REFINED),
        log:
            "results/logs/refine.log",
        threads: CORES
        resources:
            **needs(largest_spec, seconds_of(STUDY.time), TOGETHER),
            timed=1,
        params:
            **job(
                "refine",
                of=every_spec,
                again="results/refinement.json",
                study=only("time", "search", "quality"),
                pairs=list(FIRST_RECORDS.values()),
                claimed=claim_pairs(CLAIMS, STUDY),
                of_turns=CODE["turns"],
                sessions=f"{REFINED}.sessions",
            ),
        message:
            "Continue undecided comparisons until the time is spent"
        shell:
            JOB


rule compare:
    input:
        TIMED,
        results=expand("results/runs/{variant}/metrics.json", variant=SPECS),
        certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
    output:
        "results/comparisons.json",
    log:
        "results/logs/compare.log",
    params:
        **job("compare", margin=STUDY.comparison.margin, pairs=RECORDS),
    message:
        "Compare the variants"
    shell:
        QUICK_JOB
