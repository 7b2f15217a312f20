# the work of one device + a link -> step times of more devices

DISTRIBUTED = [name for name, spec in SPECS.items() if spec.world_size > 1]


rule compute_times:
    input:
        specs=expand("results/runs/{variant}/spec.json", variant=DISTRIBUTED),
        shards=SHARDS,
    output:
        "results/projection/compute.json",
    log:
        "results/logs/compute_times.log",
    threads: CORES
    resources:
        **needs(lambda wildcards: [on_one_host(largest(SPECS.values()))]),
        timed=1,
    params:
        **job(
            "compute_times",
            of=lambda wildcards: [SPECS[name] for name in DISTRIBUTED],
            again="results/projection/compute.json",
            settings=STUDY.projection,
        ),
    message:
        "Time the work of one device"
    shell:
        QUICK_JOB


rule projection:
    input:
        compute="results/projection/compute.json",
        specs=expand("results/runs/{variant}/spec.json", variant=DISTRIBUTED),
        results=expand("results/runs/{variant}/metrics.json", variant=DISTRIBUTED),
        collectives="results/machine/collectives.parquet",
    output:
        "results/projection/projection.json",
    log:
        "results/logs/projection.log",
    params:
        **job("projection", settings=STUDY.projection),
    message:
        "Project step times to more devices"
    shell:
        QUICK_JOB
