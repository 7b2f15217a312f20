# the work of one device + a link -> step times of more devices

DISTRIBUTED = [name for name, spec in SPECS.items() if spec.world_size > 1]


rule compute_times:
    input:
        specs=expand("results/runs/{variant}/spec.json", variant=DISTRIBUTED),
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        "results/projection/compute.json",
    log:
        "results/logs/compute_times.log",
    # All cores and the one slot: nothing else may disturb the timing.
    threads: CORES
    resources:
        **needs(lambda wildcards: [on_one_host(largest(SPECS.values()))]),
        timed=1,
    params:
        code=CODE["compute_times"],
        again=lambda wildcards: failures("results/projection/compute.json"),
        own=own_models(SPECS[name] for name in DISTRIBUTED),
        asked=asked(STUDY.projection),
        order=lambda wildcards, input, output: order(
            "compute_times",
            specs=input.specs,
            data=data_of(input),
            output=output[0],
            settings=STUDY.projection,
        ),
    message:
        "Time the work of one device"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


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
        code=CODE["projection"],
        asked=asked(STUDY.projection),
        order=lambda wildcards, input, output: order(
            "projection",
            compute=input.compute,
            specs=input.specs,
            results=input.results,
            collectives=input.collectives,
            settings=STUDY.projection,
            output=output[0],
        ),
    message:
        "Project step times to more devices"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
