# variant -> run spec -> repeats -> the variant's metrics, and its evaluation


rule resolve_spec:
    # No input: the file changes, and its run is repeated, only if the run spec itself changes.
    output:
        "results/runs/{variant}/spec.json",
    log:
        "results/logs/resolve_spec-{variant}.log",
    params:
        spec=lambda wildcards: SPECS[wildcards.variant].canonical_json(),
    message:
        "Write the run spec of {wildcards.variant}"
    shell:
        WRITE_SPEC


rule train:
    input:
        spec="results/runs/{variant}/spec.json",
        shards=SHARDS,
    output:
        "results/runs/{variant}/repeat-{repeat}/metrics.json",
        "results/runs/{variant}/repeat-{repeat}/steps.parquet",
        "results/runs/{variant}/repeat-{repeat}/model.safetensors",
    log:
        "results/runs/{variant}/repeat-{repeat}/run.log",
    wildcard_constraints:
        repeat="1",
    # Before short jobs that depend on it: these run side by side after all timed runs, instead of
    # alone in between.
    priority: 1
    threads: CORES
    resources:
        **needs(specs_of_variant),
        timed=1,
    params:
        **job(
            "train",
            of=specs_of_variant,
            again="results/runs/{variant}/repeat-{repeat}/metrics.json",
            output=lambda wildcards, output: Path(output[0]).parent,
            repeat=lambda wildcards: int(wildcards.repeat),
            predicted="results/memory/predicted.json",
        ),
    message:
        "Train {wildcards.variant}, repeat {wildcards.repeat}"
    # The memory prediction, if there is one, serves a warning. It is not an input: when an ancient()
    # input must be remade, Snakemake misses other changes.
    shell:
        QUICK_JOB


# Every variant runs once before any is repeated, so that drift over hours affects all of them.
use rule train as train_again with:
    wildcard_constraints:
        repeat="|".join(map(str, REPEATS[1:])) or "none",
    priority: -1


rule evaluate:
    input:
        f"results/data/{CORPUS}/tokenizer.json",
        spec="results/runs/{variant}/spec.json",
        metrics="results/runs/{variant}/repeat-1/metrics.json",
        weights="results/runs/{variant}/repeat-1/model.safetensors",
        shards=f"results/data/{CORPUS}/shards/test/manifest.json",
    output:
        "results/runs/{variant}/evaluation.json",
    log:
        "results/logs/evaluate-{variant}.log",
    threads: 1
    resources:
        **needs(lambda wildcards: [on_one_device(SPECS[wildcards.variant])]),
    params:
        **job(
            "evaluate",
            of=specs_of_variant,
            again="results/runs/{variant}/evaluation.json",
            settings=STUDY.evaluation,
        ),
        gpus=1,
    message:
        "Translate the test split with {wildcards.variant}"
    shell:
        QUICK_GPU_JOB


rule combine:
    input:
        spec="results/runs/{variant}/spec.json",
        repeats=expand("results/runs/{{variant}}/repeat-{repeat}/metrics.json", repeat=REPEATS),
        manifest=f"results/data/{CORPUS}/shards/train/manifest.json",
    output:
        "results/runs/{variant}/metrics.json",
    log:
        "results/logs/combine-{variant}.log",
    params:
        **job("combine", variant=lambda wildcards: wildcards.variant),
    message:
        "Combine the repeats of {wildcards.variant}"
    shell:
        QUICK_JOB
