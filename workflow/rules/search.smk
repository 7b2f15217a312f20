# certificates + comparisons -> the best combination of techniques; its time to good translations


rule search:
    input:
        study="results/study.json",
        variants="results/variants.json",
        comparisons="results/comparisons.json",
        certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
        reference=f"{TRAJECTORIES}/reference/trajectory.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        result="results/search.json",
        recommended="results/recommended.yaml",
    log:
        "results/logs/search.log",
    # All cores and the one slot: nothing else may disturb the timing.
    threads: CORES
    resources:
        **needs(lambda wildcards: [largest(SPECS.values())]),
        timed=1,
    params:
        code=CODE["search"],
        own=own_models(SPECS.values()),
        order=lambda wildcards, input, output: order(
            "search",
            study=input.study,
            variants=input.variants,
            comparisons=input.comparisons,
            certificates=input.certificates,
            reference=Path(input.reference).parent,
            data=data_of(input),
            output=output.result,
            recommended=output.recommended,
        ),
    message:
        "Search for the best combination of techniques"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule quality:
    input:
        spec=f"results/runs/{STUDY.baseline}/spec.json",
        search="results/search.json",
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        "results/quality.json",
    log:
        "results/logs/quality.log",
    threads: CORES
    resources:
        **needs(lambda wildcards: [largest(SPECS.values())]),
        timed=1,
    params:
        code=CODE["quality"],
        own=own_models(SPECS.values()),
        asked=asked(STUDY.quality),
        order=lambda wildcards, input, output: order(
            "quality",
            spec=input.spec,
            data=data_of(input),
            output=output[0],
            search=input.search,
            goal=STUDY.quality,
        ),
    message:
        "Train {STUDY.baseline} and the recommendation until they translate well"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
