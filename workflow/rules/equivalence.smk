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
        spec=lambda wildcards: SHORT_RUNS[wildcards.run].spec.canonical_json(),
        seal=lambda wildcards, output: sealing(
            output[0], SHORT_RUNS[wildcards.run].spec.canonical_json()
        ),
    message:
        "Write the run spec of a short run of {wildcards.run}"
    shell:
        "(printf '%s\\n' {params.spec:q} > {output}; {params.seal}) 2> {log}"


rule short_run:
    input:
        spec=f"{TRAJECTORIES}/{{run}}/spec.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
        # Seeds are trained until their losses decide.
        reference=lambda wildcards: (
            f"{TRAJECTORIES}/{REFERENCE}/trajectory.json"
            if SHORT_RUNS[wildcards.run].first_look
            else []
        ),
    output:
        trajectory=f"{TRAJECTORIES}/{{run}}/trajectory.json",
        weights=expand(
            f"{TRAJECTORIES}/{{{{run}}}}/{{name}}.safetensors", name=["initial", "final"]
        ),
    log:
        f"{TRAJECTORIES}/{{run}}/run.log",
    wildcard_constraints:
        run="|".join(SHORT_RUNS) or "none",
    # As many threads as in the timed run, so that the certificate covers what was timed.
    threads: CORES
    resources:
        **needs(lambda wildcards: [SHORT_RUNS[wildcards.run].spec]),
    params:
        code=CODE["short_run"],
        again=lambda wildcards: failures(f"{TRAJECTORIES}/{wildcards.run}/trajectory.json"),
        own=lambda wildcards: own_models([SHORT_RUNS[wildcards.run].spec]),
        gpus=lambda wildcards: SHORT_RUNS[wildcards.run].spec.machine.devices_per_node,
        asked=lambda wildcards: as_json(
            [
                SHORT_RUNS[wildcards.run].dropout,
                SHORT_RUNS[wildcards.run].schedule,
                SHORT_RUNS[wildcards.run].steps,
                seeds_until_decided(SHORT_RUNS[wildcards.run], "reference"),
            ]
        ),
        order=lambda wildcards, input, output: order(
            "short_run",
            spec=input.spec,
            data=data_of(input),
            output=Path(output.trajectory).parent,
            dropout=SHORT_RUNS[wildcards.run].dropout,
            late={
                "schedule": SHORT_RUNS[wildcards.run].schedule,
                "steps": SHORT_RUNS[wildcards.run].steps,
            },
            **seeds_until_decided(SHORT_RUNS[wildcards.run], input.reference),
        ),
    message:
        "Train {wildcards.run} for a few steps"
    shell:
        "python -m transformer_core.run.gpu_leases --count {params.gpus} --"
        " python -m transformer_core.run.quick_start"
        " transformer_core.run.job --order {params.order:q} --log-file {log}"


rule certify:
    input:
        unpack(compared_runs),
    output:
        "results/equivalence/{variant}.json",
    log:
        "results/logs/certify-{variant}.log",
    params:
        code=CODE["certify"],
        equivalence=lambda wildcards: VARIANTS[wildcards.variant].equivalence.canonical_json(),
        files=lambda wildcards: " ".join(
            f"--{option} {file if option == 'timed' else Path(file).parent}"
            for option, file in compared_runs(wildcards).items()
        ),
    message:
        "Certify that {wildcards.variant} trains the same model"
    shell:
        "python -m transformer_core.run.quick_start"
        " transformer_core.certify.judge --variant {wildcards.variant}"
        " --equivalence {params.equivalence:q} {params.files} --output {output} 2>&1 | tee {log}"


rule certificates:
    # Certificates, and only their inputs.
    input:
        expand("results/equivalence/{variant}.json", variant=SPECS),
    output:
        "results/certificates.md",
    log:
        "results/logs/certificates.log",
    params:
        code=CODE["certificates"],
    message:
        "Put all certificates into a table"
    shell:
        "python -m transformer_core.run.quick_start"
        " transformer_core.certify.certificate_table {input} --output {output} 2>&1 | tee {log}"
