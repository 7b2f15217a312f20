# The machine, read inside a job: the head node of a cluster is a different one.

# Resources of a job that uses one device, and of one that uses those of all hosts.
ONE_DEVICE = on_one_device(on_all_devices(STUDY.machine, "machine"))
ALL_DEVICES = on_all_devices(STUDY.machine, "machine")


rule hardware:
    output:
        "results/machine/hardware.json",
    log:
        "results/logs/hardware.log",
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
    params:
        code=CODE["hardware"],
        order=lambda wildcards, output: order("hardware", output=output[0]),
    message:
        "Describe the machine"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


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
        code=CODE["roofline"],
        asked=asked(STUDY.machine.device, STUDY.limits),
        order=lambda wildcards, output: order(
            "roofline", device=STUDY.machine.device, limits=STUDY.limits, output=output[0]
        ),
    message:
        "Measure the limits of the device"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


# Communication is not measured where each variant has a single process.
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
        code=CODE["collectives"],
        again=lambda wildcards: failures("results/machine/collectives.parquet"),
        asked=asked(STUDY.machine, STUDY.limits),
        order=lambda wildcards, output: order(
            "collectives", output=output[0], machine=STUDY.machine, limits=STUDY.limits
        ),
    message:
        "Measure the collective operations"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule utilisation:
    input:
        runs=expand("results/runs/{variant}/{name}.json", variant=SPECS, name=["spec", "metrics"]),
        steps=expand(
            "results/runs/{variant}/repeat-{repeat}/steps.parquet", variant=SPECS, repeat=REPEATS
        ),
        manifest=f"results/data/{CORPUS}/shards/train/manifest.json",
        roofline="results/machine/roofline.json",
    output:
        "results/utilisation.json",
    log:
        "results/logs/utilisation.log",
    params:
        code=CODE["utilisation"],
        order=lambda wildcards, input, output: order(
            "utilisation",
            runs=expand("results/runs/{variant}", variant=SPECS),
            manifest=input.manifest,
            roofline=input.roofline,
            output=output[0],
        ),
    message:
        "Compare the variants with the limits of the machine"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
