# variants in pairs, timed in turns -> ratios and verdicts


rule pair:
    input:
        specs=lambda wildcards: [
            f"results/runs/{spec.variant}/spec.json" for spec in sides(wildcards)
        ],
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
        code=sorted(
            {
                *sources("transformer_core.measure.paired", without=OBSERVERS),
                *sources("transformer_core.measure.paired_worker", without=OBSERVERS),
            }
        ),
        own=lambda wildcards: sum(map(own_model, sides(wildcards)), []),
    output:
        # <reference>/<variant>
        "results/pairs/{pair}.json",
    log:
        "results/logs/pairs/{pair}.log",
    wildcard_constraints:
        pair="|".join(f"{reference}/{variant}" for variant, reference in PAIRS) or "none",
    # All cores and the one slot: nothing else may disturb a timed run.
    threads: workflow.cores
    resources:
        **needs(sides),
        timed=1,
    params:
        data=lambda wildcards, input: Path(input.shards[0]).parents[2],
        # Without the margin, which only judges what was measured.
        comparing=STUDY.comparison.model_dump_json(exclude={"margin"}),
    message:
        "Time {wildcards.pair} in turns"
    shell:
        "python -m transformer_core.measure.paired --reference {input.specs[0]}"
        " --variant {input.specs[1]} --comparing {params.comparing:q} --data {params.data}"
        " --output {output} --log-file {log}"


rule compare:
    input:
        pairs=PAIRED_RUNS,
        results=expand("results/runs/{variant}/metrics.json", variant=SPECS),
        certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
        code=sources("transformer_core.analysis.compare"),
    output:
        "results/comparisons.json",
    log:
        "results/logs/compare.log",
    params:
        margin=STUDY.comparison.margin,
    message:
        "Compare the variants"
    shell:
        "python -m transformer_core.analysis.compare --margin {params.margin} --pairs {input.pairs}"
        " --results {input.results} --certificates {input.certificates} --output {output}"
        " 2>&1 | tee {log}"
