# variant -> run spec -> repeats -> evaluation -> the variant's metrics


rule resolve_spec:
    # No input: the file changes, and its run is repeated, only if the run spec itself changes.
    output:
        "results/runs/{variant}/spec.json",
    log:
        "results/logs/resolve_spec-{variant}.log",
    params:
        spec=lambda wildcards: SPECS[wildcards.variant].canonical_json(),
        seal=lambda wildcards, output: sealing(output[0], SPECS[wildcards.variant].canonical_json()),
    message:
        "Write the run spec of {wildcards.variant}"
    shell:
        "(printf '%s\\n' {params.spec:q} > {output}; {params.seal}) 2> {log}"


rule train:
    input:
        spec="results/runs/{variant}/spec.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        metrics="results/runs/{variant}/repeat-{repeat}/metrics.json",
        steps="results/runs/{variant}/repeat-{repeat}/steps.parquet",
        weights="results/runs/{variant}/repeat-{repeat}/model.safetensors",
    log:
        "results/runs/{variant}/repeat-{repeat}/run.log",
    wildcard_constraints:
        repeat="1",
    # All cores and the one slot: nothing else may disturb a timed run.
    threads: CORES
    resources:
        **needs(lambda wildcards: [SPECS[wildcards.variant]]),
        timed=1,
    params:
        code=CODE["train"],
        again=lambda wildcards: failures(
            f"results/runs/{wildcards.variant}/repeat-{wildcards.repeat}/metrics.json"
        ),
        own=lambda wildcards: own_models([SPECS[wildcards.variant]]),
        order=lambda wildcards, input, output: order(
            "timed_run",
            spec=input.spec,
            data=data_of(input),
            output=Path(output.metrics).parent,
            repeat=int(wildcards.repeat),
            predicted="results/memory/predicted.json",
        ),
    message:
        "Train {wildcards.variant}, repeat {wildcards.repeat}"
    # The memory prediction, if there is one, serves a warning. It is not an input: if an ancient()
    # input must be made again, Snakemake misses other changes.
    shell:
        "python -m transformer_core.run.quick_start"
        " transformer_core.run.job --order {params.order:q} --log-file {log}"


# Every variant runs once before any repeats: a machine that drifts over hours then drifts for all
# of them.
use rule train as train_again with:
    wildcard_constraints:
        repeat="|".join(map(str, REPEATS[1:])) or "none",
    priority: -1


rule evaluate:
    input:
        spec="results/runs/{variant}/spec.json",
        run="results/runs/{variant}/repeat-1/metrics.json",
        weights="results/runs/{variant}/repeat-1/model.safetensors",
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
        shards=f"results/data/{CORPUS}/shards/test/manifest.json",
    output:
        "results/runs/{variant}/evaluation.json",
    log:
        "results/logs/evaluate-{variant}.log",
    threads: 1
    resources:
        **needs(lambda wildcards: [on_one_device(SPECS[wildcards.variant])]),
    params:
        code=CODE["evaluate"],
        again=lambda wildcards: failures(f"results/runs/{wildcards.variant}/evaluation.json"),
        own=lambda wildcards: own_models([SPECS[wildcards.variant]]),
        order=lambda wildcards, input, output: order(
            "evaluation",
            spec=input.spec,
            data=Path(input.tokenizer).parent,
            output=output[0],
            metrics=input.run,
            weights=input.weights,
        ),
    message:
        "Translate the test split with {wildcards.variant}"
    shell:
        "python -m transformer_core.run.gpu_leases --count 1 --"
        " python -m transformer_core.run.quick_start"
        " transformer_core.run.job --order {params.order:q} --log-file {log}"


rule combine:
    input:
        spec="results/runs/{variant}/spec.json",
        repeats=expand("results/runs/{{variant}}/repeat-{repeat}/metrics.json", repeat=REPEATS),
        evaluation="results/runs/{variant}/evaluation.json",
        manifest=f"results/data/{CORPUS}/shards/train/manifest.json",
    output:
        "results/runs/{variant}/metrics.json",
    log:
        "results/logs/combine-{variant}.log",
    params:
        code=CODE["combine"],
        order=lambda wildcards, input, output: order(
            "combine",
            variant=wildcards.variant,
            spec=input.spec,
            repeats=input.repeats,
            evaluation=input.evaluation,
            manifest=input.manifest,
            output=output[0],
        ),
    message:
        "Combine the repeats of {wildcards.variant}"
    shell:
        "python -m transformer_core.run.quick_start"
        " transformer_core.run.job --order {params.order:q} --log-file {log}"
