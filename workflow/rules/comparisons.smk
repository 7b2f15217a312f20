# variants and their reference, timed in turns -> ratios and verdicts


rule turns:
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
        # <reference>/<number>
        directory("results/turns/{group}"),
    log:
        "results/logs/turns/{group}.log",
    wildcard_constraints:
        group="|".join(TURNS) or "none",
    # All cores and the one slot: nothing else may disturb a timed run.
    threads: workflow.cores
    resources:
        **needs(sides),
        timed=1,
    params:
        data=lambda wildcards, input: Path(input.shards[0]).parents[2],
        # Without what only judges, or only groups, what is measured.
        comparing=STUDY.comparison.model_dump_json(exclude={"margin", "together"}),
        variants=lambda wildcards, input: input.specs[1:],
        files=lambda wildcards, output: [
            f"{output[0]}/{spec.variant}.json" for spec in sides(wildcards)[1:]
        ],
        targets=lambda wildcards: [
            f"results/pairs/{TURNS[wildcards.group][0]}/{variant}.json"
            for variant in TURNS[wildcards.group][1]
        ],
    message:
        "Time in turns for {params.targets}"
    shell:
        "python -m transformer_core.measure.paired --reference {input.specs[0]}"
        " --variant {params.variants} --comparing {params.comparing:q} --data {params.data}"
        " --output {params.files} --target {params.targets} --sessions {output}.sessions"
        " --log-file {log}"


rule pair:
    input:
        lambda wildcards: f"results/turns/{GROUP_OF[wildcards.pair]}",
    output:
        # <reference>/<variant>
        "results/pairs/{pair}.json",
    log:
        "results/logs/pairs/{pair}.log",
    wildcard_constraints:
        pair="|".join(GROUP_OF) or "none",
    params:
        variant=lambda wildcards: wildcards.pair.split("/")[1],
    message:
        "Take {wildcards.pair} from what took turns"
    shell:
        "cp {input}/{params.variant}.json {output} 2> {log}"


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
