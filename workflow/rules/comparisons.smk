# variants and their reference, timed in turns -> ratios and verdicts


rule turns:
    input:
        specs=lambda wildcards: [
            f"results/runs/{spec.variant}/spec.json" for spec in sides(wildcards)
        ],
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        # <variant>/<reference>.json of each of its comparisons
        directory("results/turns/{group}"),
    log:
        "results/logs/turns/{group}.log",
    wildcard_constraints:
        group="|".join(TURNS) or "none",
    # All cores and the one slot: nothing else may disturb a timed run.
    threads: CORES
    resources:
        **needs(sides),
        timed=1,
    params:
        code=CODE["turns"],
        again=lambda wildcards: failures(f"results/turns/{wildcards.group}"),
        own=lambda wildcards: own_models(sides(wildcards)),
        asked=lambda wildcards: as_json([COMPARING, TURNS[wildcards.group].records()]),
        order=lambda wildcards, input, output: order(
            "turns",
            specs=input.specs,
            comparing=COMPARING,
            data=data_of(input),
            pairs=TURNS[wildcards.group].records(),
            outputs=[f"{output[0]}/{pair}.json" for pair in TURNS[wildcards.group].records()],
            target=output[0],
            sessions=f"{output[0]}.sessions",
            code=CODE["turns"],
        ),
    message:
        "Time {wildcards.group} in turns"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


# If the study has a time budget, undecided comparisons continue when all else is done.
if STUDY.time is not None:

    rule refine:
        input:
            study="results/study.json",
            specs=expand("results/runs/{variant}/spec.json", variant=SPECS),
            turns=[f"results/turns/{group}" for group in TURNS],
            certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
            shards=expand(
                f"results/data/{CORPUS}/shards/{{split}}/manifest.json",
                split=["train", "validation"],
            ),
            before=lambda wildcards: DONE_FIRST,
        output:
            record="results/refinement.json",
            # <variant>/<reference>.json
            records=directory(REFINED),
        log:
            "results/logs/refine.log",
        # All cores and the one slot: nothing else may disturb the timing.
        threads: CORES
        resources:
            # The time that may be left, and a little for the start.
            **needs(lambda wildcards: [largest(SPECS.values())])
            | {"runtime": 5 + int(seconds_of(STUDY.time) / 60)},
            timed=1,
        params:
            code=CODE["refine"],
            own=own_models(SPECS.values()),
            asked=asked(claim_pairs(CLAIMS, STUDY), CODE["turns"]),
            order=lambda wildcards, input, output: order(
                "refine",
                study=input.study,
                specs=input.specs,
                pairs=list(FIRST_RECORDS.values()),
                certificates=input.certificates,
                claimed=claim_pairs(CLAIMS, STUDY),
                data=data_of(input),
                of_turns=CODE["turns"],
                sessions=f"{output.records}.sessions",
                records=output.records,
                output=output.record,
            ),
        message:
            "Continue undecided comparisons until the time is spent"
        shell:
            "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule compare:
    input:
        timed=TIMED,
        results=expand("results/runs/{variant}/metrics.json", variant=SPECS),
        certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
    output:
        "results/comparisons.json",
    log:
        "results/logs/compare.log",
    params:
        code=CODE["compare"],
        asked=asked(STUDY.comparison.margin, list(RECORDS.values())),
        order=lambda wildcards, input, output: order(
            "compare",
            margin=STUDY.comparison.margin,
            pairs=list(RECORDS.values()),
            results=input.results,
            certificates=input.certificates,
            output=output[0],
        ),
    message:
        "Compare the variants"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
