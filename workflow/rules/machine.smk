# The machine, read inside a job, because the head node of a cluster is a different one.

# For the resources of a job on all devices, and of one on a single device.
ALL_DEVICES = on_all_devices(STUDY.machine, "machine")
ONE_DEVICE = on_one_device(ALL_DEVICES)


rule hardware:
    output:
        "results/machine/hardware.json",
    log:
        "results/logs/hardware.log",
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
    params:
        **job("hardware"),
    message:
        "Describe the machine"
    shell:
        JOB


rule roofline:
    output:
        "results/machine/roofline.json",
    log:
        "results/logs/roofline.log",
    threads: CORES
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
        timed=1,
    params:
        **job("roofline", device=STUDY.machine.device, limits=STUDY.limits),
    message:
        "Measure the limits of the device"
    shell:
        JOB


# Communication is not measured if every variant has a single process.
COLLECTIVES = ["results/machine/collectives.parquet"] * (
    STUDY.projection is not None or any(spec.world_size > 1 for spec in SPECS.values())
)


rule collectives:
    output:
        "results/machine/collectives.parquet",
    log:
        "results/logs/collectives.log",
    threads: CORES
    resources:
        **needs(lambda wildcards: [ALL_DEVICES]),
        timed=1,
    params:
        **job(
            "collectives",
            again="results/machine/collectives.parquet",
            machine=STUDY.machine,
            limits=STUDY.limits,
        ),
    message:
        "Measure the collective operations"
    shell:
        QUICK_JOB


rule utilisation:
    input:
        expand("results/runs/{variant}/{name}.json", variant=SPECS, name=["spec", "metrics"]),
        expand(
            "results/runs/{variant}/repeat-{repeat}/steps.parquet", variant=SPECS, repeat=REPEATS
        ),
        manifest=f"results/data/{CORPUS}/shards/train/manifest.json",
        roofline="results/machine/roofline.json",
    output:
        "results/utilisation.json",
    log:
        "results/logs/utilisation.log",
    params:
        **job("utilisation", runs=expand("results/runs/{variant}", variant=SPECS)),
    message:
        "Compare the variants with the limits of the machine"
    shell:
        QUICK_JOB
