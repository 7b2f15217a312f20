# run specs -> memory predicted without a run, memory measured in a few steps, largest batches

SEARCHED = STUDY.memory.largest_batch.variants if STUDY.memory else []
MEMORY_FILES = [
    *["results/memory/predicted.json"] * (STUDY.memory is not None),
    *expand(
        "results/memory/{variant}.json",
        variant=SPECS if STUDY.memory and STUDY.memory.anatomy else [],
    ),
    *expand("results/memory/largest_batch/{variant}.json", variant=SEARCHED),
]


rule predict_memory:
    input:
        specs=expand("results/runs/{variant}/spec.json", variant=SPECS),
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        "results/memory/predicted.json",
    log:
        "results/logs/predict_memory.log",
    # Before all runs, so that it can warn of them.
    priority: 1
    threads: 1
    resources:
        # The remaining memory of a process is measured on a device, if there is one.
        **needs(lambda wildcards: [on_one_device(largest(SPECS.values()))]),
    params:
        code=CODE["predict_memory"],
        own=own_models(SPECS.values()),
        order=lambda wildcards, input, output: order(
            "predict_memory", specs=list(input.specs), data=data_of(input), output=output[0]
        ),
    message:
        "Predict the memory of every variant"
    # A GPU of its own: memory of other jobs would count as that of a process.
    shell:
        "python -m transformer_core.run.gpu_leases --count 1 --"
        " python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule memory:
    input:
        spec="results/runs/{variant}/spec.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        "results/memory/{variant}.json",
    log:
        "results/logs/memory-{variant}.log",
    # Not timed: such jobs share the cores. A timed run takes all of them, so none is disturbed.
    # Half of the cores it uses: most of so short a job is its start, on one core.
    threads: lambda wildcards: (1 + SPECS[wildcards.variant].processes_per_node) // 2
    resources:
        **needs(lambda wildcards: [SPECS[wildcards.variant]]),
    params:
        code=CODE["memory"],
        again=lambda wildcards: failures(f"results/memory/{wildcards.variant}.json"),
        own=lambda wildcards: own_models([SPECS[wildcards.variant]]),
        gpus=lambda wildcards: SPECS[wildcards.variant].machine.devices_per_node,
        order=lambda wildcards, input, output: order(
            "memory", spec=input.spec, data=data_of(input), output=output[0]
        ),
    message:
        "Measure the memory of {wildcards.variant} by purpose"
    shell:
        "python -m transformer_core.run.gpu_leases --count {params.gpus} --"
        " python -m transformer_core.run.quick_start"
        " transformer_core.run.job --order {params.order:q} --log-file {log}"


rule largest_batch:
    input:
        spec="results/runs/{variant}/spec.json",
        shards=f"results/data/{CORPUS}/shards/train/manifest.json",
    output:
        "results/memory/largest_batch/{variant}.json",
    log:
        "results/logs/largest_batch-{variant}.log",
    wildcard_constraints:
        variant="|".join(SEARCHED) or "none",
    # Nothing runs beside it: without a limit it fills the memory of the machine.
    threads: CORES
    resources:
        **needs(lambda wildcards: [SPECS[wildcards.variant]]),
    params:
        code=CODE["largest_batch"],
        own=lambda wildcards: own_models([SPECS[wildcards.variant]]),
        gpus=lambda wildcards: SPECS[wildcards.variant].machine.devices_per_node,
        asked=lambda wildcards: as_json(STUDY.memory.largest_batch),
        order=lambda wildcards, input, output: order(
            "largest_batch",
            spec=input.spec,
            data=data_of(input),
            output=output[0],
            settings=STUDY.memory.largest_batch,
        ),
    message:
        "Search for the largest batch of {wildcards.variant}"
    shell:
        "python -m transformer_core.run.gpu_leases --count {params.gpus} --"
        " python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
