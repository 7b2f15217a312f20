# short runs of the variants and of the reference -> certificates that they train the same model


rule short_spec:
    # No input, like resolve_spec.
    output:
        f"{TRAJECTORIES}/{{run}}/spec.json",
    log:
        "results/logs/short_spec-{run}.log",
    wildcard_constraints:
        run="|".join(SHORT_RUNS) or "none",
    params:
        spec=lambda wildcards: dump(SHORT_RUNS[wildcards.run].spec),
    message:
        "Write the run spec of a short run of {wildcards.run}"
    shell:
        "printf '%s\\n' {params.spec:q} > {output} 2> {log}"


rule short_run:
    input:
        spec=f"{TRAJECTORIES}/{{run}}/spec.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
        code=sources("transformer_core.measure.trajectory", without=OBSERVERS),
        own=lambda wildcards: own_model(SHORT_RUNS[wildcards.run].spec),
    output:
        trajectory=f"{TRAJECTORIES}/{{run}}/trajectory.json",
        weights=expand(
            f"{TRAJECTORIES}/{{{{run}}}}/{{name}}.safetensors", name=["initial", "final"]
        ),
    log:
        f"{TRAJECTORIES}/{{run}}/run.log",
    wildcard_constraints:
        run="|".join(SHORT_RUNS) or "none",
    # Not timed: short runs share the cores. A timed run takes all of them, so none is disturbed.
    # Half of what it uses: the most of so short a job is its start, on one core.
    threads: lambda wildcards: (1 + SHORT_RUNS[wildcards.run].spec.processes_per_node) // 2
    resources:
        **needs(lambda wildcards: [SHORT_RUNS[wildcards.run].spec]),
    params:
        data=lambda wildcards, input: Path(input.shards[0]).parents[2],
        folder=lambda wildcards, output: Path(output.trajectory).parent,
        seeds=lambda wildcards: SHORT_RUNS[wildcards.run].seeds,
        gpus=lambda wildcards: SHORT_RUNS[wildcards.run].spec.machine.devices_per_node,
    message:
        "Train {wildcards.run} for a few steps"
    shell:
        "python -m transformer_core.measure.gpus --count {params.gpus} --"
        " python -m transformer_core.measure.short_run --spec {input.spec} --seeds {params.seeds}"
        " --data {params.data} --output {params.folder} --log-file {log}"


rule certify:
    input:
        unpack(compared_runs),
        code=sources("transformer_core.analysis.equivalence"),
    output:
        "results/equivalence/{variant}.json",
    log:
        "results/logs/certify-{variant}.log",
    params:
        equivalence=lambda wildcards: dump(VARIANTS[wildcards.variant].equivalence),
        folders=lambda wildcards: " ".join(
            f"--{option} {Path(file).parent}" for option, file in compared_runs(wildcards).items()
        ),
    message:
        "Certify that {wildcards.variant} trains the same model"
    shell:
        "python -m transformer_core.analysis.equivalence --variant {wildcards.variant}"
        " --equivalence {params.equivalence:q} {params.folders} --output {output} 2>&1 | tee {log}"
