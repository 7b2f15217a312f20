# short runs of the variants and of the reference -> certificates that they train the same model


rule short_spec:
    # No input, like resolve_spec.
    output:
        f"{TRAJECTORIES}/{{run}}/spec.json",
    log:
        "results/logs/short_spec-{run}.log",
    params:
        spec=lambda wildcards: SHORT_RUNS[wildcards.run].spec.canonical_json(),
    message:
        "Write the run spec of a short run of {wildcards.run}"
    shell:
        WRITE_SPEC


rule short_run:
    input:
        spec=f"{TRAJECTORIES}/{{run}}/spec.json",
        shards=SHARDS,
        # More seeds are trained until their losses decide.
        reference=lambda wildcards: (
            f"{TRAJECTORIES}/{REFERENCE}/trajectory.json"
            if SHORT_RUNS[wildcards.run].first_look
            else []
        ),
    output:
        f"{TRAJECTORIES}/{{run}}/trajectory.json",
        expand(f"{TRAJECTORIES}/{{{{run}}}}/{{name}}.safetensors", name=["initial", "final"]),
    log:
        f"{TRAJECTORIES}/{{run}}/run.log",
    # Not timed, so two run at a time. Each uses as many threads as the timed run, so that the
    # certificate covers what was timed.
    threads: max(1, CORES // 2)
    resources:
        **needs(short_spec_of),
    params:
        **job(
            "short_run",
            of=short_spec_of,
            again=f"{TRAJECTORIES}/{{run}}/trajectory.json",
            output=lambda wildcards, output: Path(output[0]).parent,
            dropout=lambda wildcards: SHORT_RUNS[wildcards.run].timed.model.dropout,
            late=lambda wildcards: {
                name: getattr(SHORT_RUNS[wildcards.run].timed.training, name)
                for name in ("schedule", "steps")
            },
            seeds=lambda wildcards: SHORT_RUNS[wildcards.run].seeds,
            first_look=lambda wildcards: SHORT_RUNS[wildcards.run].first_look or None,
            margin=lambda wildcards: SHORT_RUNS[wildcards.run].margin or None,
            budget=lambda wildcards: (
                STUDY.certificate.budget if SHORT_RUNS[wildcards.run].first_look else None
            ),
        ),
        gpus=lambda wildcards: devices_on_a_host(SHORT_RUNS[wildcards.run].spec.machine),
    message:
        "Train {wildcards.run} for a few steps"
    shell:
        f"OMP_NUM_THREADS=$ALL_CORES {QUICK_GPU_JOB}"


rule certify:
    input:
        unpack(compared_runs),
    output:
        "results/equivalence/{variant}.json",
    log:
        "results/logs/certify-{variant}.log",
    params:
        **job(
            "certify",
            variant=lambda wildcards: wildcards.variant,
            equivalence=lambda wildcards: VARIANTS[wildcards.variant].equivalence,
        ),
    message:
        "Certify that {wildcards.variant} trains the same model"
    shell:
        QUICK_JOB


rule audit:
    # The reference itself: self-consistency checks of the baseline's training.
    input:
        spec=f"results/runs/{STUDY.baseline}/spec.json",
        shards=SHARDS,
    output:
        "results/audit.json",
    log:
        "results/logs/audit.log",
    # The longest untimed job starts early, so that others run alongside it.
    priority: 1
    # Not timed: it mostly starts two processes, so another job can run alongside.
    threads: max(1, CORES // 2)
    resources:
        **needs(baseline_spec),
    params:
        **job("audit", of=baseline_spec, again="results/audit.json"),
        gpus=lambda wildcards: devices_on_a_host(SPECS[STUDY.baseline].machine),
    message:
        "Audit the training of the baseline"
    shell:
        GPU_JOB


rule certificates:
    # Needs only the certificates.
    input:
        certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
    output:
        "results/certificates.md",
    log:
        "results/logs/certificates.log",
    params:
        **job("certificates"),
    message:
        "Put all certificates into a table"
    shell:
        QUICK_JOB
