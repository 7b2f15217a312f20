# certificates + comparisons -> the best combination of techniques; its time to good translations


rule search:
    input:
        study="results/study.json",
        variants="results/variants.json",
        comparisons="results/comparisons.json",
        certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
        reference=f"{TRAJECTORIES}/reference/trajectory.json",
        shards=SHARDS,
    output:
        "results/search.json",
        recommended="results/recommended.yaml",
    log:
        "results/logs/search.log",
    # All cores and the one slot: nothing else may disturb the timing.
    threads: CORES
    resources:
        **needs(largest_spec),
        timed=1,
    params:
        **job(
            "search",
            of=every_spec,
            again="results/search.json",
            reference=lambda wildcards, input: Path(input.reference).parent,
            code=CODE["search"],
        ),
    message:
        "Search for the best combination of techniques"
    shell:
        JOB


rule quality:
    input:
        f"results/data/{CORPUS}/tokenizer.json",
        spec=f"results/runs/{STUDY.baseline}/spec.json",
        search="results/search.json",
        also=[
            f"results/runs/{variant}/spec.json"
            for variant in (STUDY.quality.also if STUDY.quality else [])
        ],
        shards=SHARDS,
    output:
        "results/quality.json",
    log:
        "results/logs/quality.log",
    threads: CORES
    resources:
        **needs(largest_spec),
        timed=1,
    params:
        **job("quality", of=every_spec, again="results/quality.json", goal=STUDY.quality),
    message:
        "Train the baseline and the recommendation until they are good enough"
    shell:
        JOB
