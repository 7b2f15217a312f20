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
        shards=SHARDS,
    output:
        "results/memory/predicted.json",
    log:
        "results/logs/predict_memory.log",
    # Before all runs, so that it can warn about them.
    priority: 2
    threads: 1
    resources:
        # A process's memory besides tensors is measured on a device, if there is one.
        **needs(lambda wildcards: [on_one_device(largest(SPECS.values()))]),
    params:
        **job("predict_memory", of=every_spec),
        gpus=1,
    message:
        "Predict the memory of every variant"
    # It needs its own GPU: memory of other jobs would be counted as its own.
    shell:
        GPU_JOB


rule memory:
    input:
        spec="results/runs/{variant}/spec.json",
        shards=SHARDS,
    output:
        "results/memory/{variant}.json",
    log:
        "results/logs/memory-{variant}.log",
    # Not timed: such jobs share the cores, and never run during a timed run, which takes all cores.
    # It reserves half the cores that it uses: most of the job is its start, on one core.
    threads: lambda wildcards: (1 + SPECS[wildcards.variant].processes_per_node) // 2
    resources:
        **needs(specs_of_variant),
    params:
        **job(
            "memory",
            of=specs_of_variant,
            again="results/memory/{variant}.json",
            # Of the number of texts, only whether there are any.
            evaluation=STUDY.evaluation.model_copy(
                update={"max_pairs": min(STUDY.evaluation.max_pairs, 1), "samples": 0}
            ),
        ),
        gpus=devices,
    message:
        "Measure the memory of {wildcards.variant} by purpose"
    shell:
        QUICK_GPU_JOB


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
    # Nothing runs alongside it: without a limit, it fills the memory of the machine.
    threads: CORES
    resources:
        **needs(specs_of_variant),
    params:
        **job(
            "largest_batch",
            of=specs_of_variant,
            again="results/memory/largest_batch/{variant}.json",
            settings=lambda wildcards: STUDY.memory.largest_batch,
        ),
        gpus=devices,
    message:
        "Search for the largest batch of {wildcards.variant}"
    shell:
        GPU_JOB
