# certificates + comparisons -> the best combination of techniques; its time to good translations

TRIED = min(getattr(STUDY.search, "together", 1), 2 ** (len(SPECS) - 1))  # trainings in turns
ALSO = STUDY.quality.also if STUDY.quality else []


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
        **needs(largest_spec, getattr(STUDY.search, "budget", 0.0), TRIED),
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
        also=expand("results/runs/{variant}/spec.json", variant=ALSO),
        shards=SHARDS,
    output:
        "results/quality.json",
    log:
        "results/logs/quality.log",
    threads: CORES
    resources:
        **needs(largest_spec, getattr(STUDY.quality, "budget", 0.0), 2 + len(ALSO)),
        timed=1,
    params:
        **job("quality", of=every_spec, again="results/quality.json", goal=STUDY.quality),
    message:
        "Train the baseline and the recommendation until they are good enough"
    shell:
        JOB
