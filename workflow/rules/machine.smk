# The machine, read inside a job: the head node of a cluster is another one.

# What a job reserves that looks at one device, and one that needs those of all hosts.
ONE_DEVICE = on_one_device(on_all_devices(STUDY.machine, "machine"))
ALL_DEVICES = on_all_devices(STUDY.machine, "machine")


rule hardware:
    input:
        code=sources("transformer_core.measure.hardware"),
    output:
        "results/machine/hardware.json",
    log:
        "results/logs/hardware.log",
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
    message:
        "Describe the machine"
    shell:
        "python -m transformer_core.measure.hardware --output {output} 2>&1 | tee {log}"


rule roofline:
    input:
        code=sources("transformer_core.measure.roofline", without=OBSERVERS),
    output:
        "results/machine/roofline.json",
    log:
        "results/logs/roofline.log",
    threads: workflow.cores
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
        timed=1,
    params:
        device=STUDY.machine.device,
        limits=dump(STUDY.limits),
    message:
        "Measure what the device reaches"
    shell:
        "python -m transformer_core.measure.roofline --device {params.device}"
        " --limits {params.limits:q} --output {output} 2>&1 | tee {log}"


rule collectives:
    input:
        code=sources("transformer_core.measure.collectives_worker", without=OBSERVERS),
    output:
        "results/machine/collectives.parquet",
    log:
        "results/logs/collectives.log",
    threads: workflow.cores
    resources:
        **needs(lambda wildcards: [ALL_DEVICES]),
        timed=1,
    params:
        machine=dump(STUDY.machine),
        limits=dump(STUDY.limits),
    message:
        "Measure the collective operations"
    shell:
        "python -m transformer_core.measure.collectives --machine {params.machine:q}"
        " --limits {params.limits:q} --output {output} --log-file {log}"


rule utilisation:
    input:
        runs=expand("results/runs/{variant}/{name}.json", variant=SPECS, name=["spec", "metrics"]),
        steps=expand(
            "results/runs/{variant}/repeat-{repeat}/steps.parquet", variant=SPECS, repeat=REPEATS
        ),
        manifest=f"results/data/{CORPUS}/shards/train/manifest.json",
        roofline="results/machine/roofline.json",
        code=sources("transformer_core.analysis.utilisation"),
    output:
        "results/utilisation.json",
    log:
        "results/logs/utilisation.log",
    params:
        folders=expand("results/runs/{variant}", variant=SPECS),
    message:
        "Hold the variants against the limits of the machine"
    shell:
        "python -m transformer_core.analysis.utilisation --runs {params.folders}"
        " --train-manifest {input.manifest} --roofline {input.roofline} --output {output}"
        " 2>&1 | tee {log}"
