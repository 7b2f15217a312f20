# certificates + comparisons -> the best combination of techniques; its time to good translations


rule search:
    input:
        comparisons="results/comparisons.json",
        certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
        reference=f"{TRAJECTORIES}/reference/trajectory.json",
        shards=SHARDS,
    output:
        "results/search.json",
        recommended="results/recommended.yaml",
    log:
        "results/logs/search.log",
    threads: CORES
    resources:
        **needs(largest_spec),
        timed=1,
    params:
        **job(
            "search",
            of=every_spec,
            again="results/search.json",
            study=only(*Sections.model_fields, "certificate", "profiling", "search"),
            # Without their texts, which change no search.
            variants={
                name: variant.model_copy(update={"summary": name, "tests": []})
                for name, variant in DEFINITIONS.items()
            },
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
