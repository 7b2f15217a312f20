# run spec -> a few profiled steps, one trace per rank -> the devices' activity in them


rule profile:
    input:
        spec="results/runs/{variant}/spec.json",
        shards=SHARDS,
    output:
        "results/profiles/{variant}/capture.json",
    log:
        "results/profiles/{variant}/run.log",
    priority: 1
    # Like a timed run, because other work would show in the trace.
    threads: CORES
    resources:
        **needs(specs_of_variant),
        timed=1,
    params:
        **job(
            "profile",
            of=specs_of_variant,
            again="results/profiles/{variant}/capture.json",
            output=lambda wildcards, output: Path(output[0]).parent,
            profiling=STUDY.profiling,
        ),
    message:
        "Profile {wildcards.variant}"
    shell:
        QUICK_JOB


rule breakdown:
    input:
        capture="results/profiles/{variant}/capture.json",
    output:
        "results/profiles/{variant}/breakdown.json",
        events="results/profiles/{variant}/events.parquet",
    log:
        "results/logs/breakdown-{variant}.log",
    params:
        **job("breakdown"),
    message:
        "Break down the profile of {wildcards.variant}"
    shell:
        f"{QUICK_JOB} 2>&1 | tee -a {{log}}"


rule breakdown_of_traces:
    # Files that the user brought: --config 'traces={"name": ["file", ...]}'
    input:
        lambda wildcards: without_braces(STUDY.traces[wildcards.trace]),
    output:
        breakdown="results/profiles/{trace}/breakdown.json",
        events="results/profiles/{trace}/events.parquet",
    log:
        "results/logs/breakdown_of_traces-{trace}.log",
    params:
        code=CODE["breakdown_of_traces"],
        files=lambda wildcards: STUDY.traces[wildcards.trace],
        seen=lambda wildcards: seen_of(STUDY.traces[wildcards.trace]),
    message:
        "Break down the traces of {wildcards.trace}"
    shell:
        "python -m transformer_core.run.quick_start"
        " transformer_core.trace {params.files:q} --name {wildcards.trace} --keep-status"
        " --events {output.events} --output {output.breakdown} 2>&1 | tee {log}"


rule perfetto:
    # All ranks on one clock, with phases, layers, classes, memory and links: on demand.
    input:
        events="results/profiles/{name}/events.parquet",
    output:
        "results/profiles/{name}/perfetto.json.gz",
    log:
        "results/logs/perfetto-{name}.log",
    wildcard_constraints:
        name="|".join([*SPECS, *STUDY.traces]),
    params:
        code=CODE["perfetto"],
    message:
        "Draw the profile of {wildcards.name} for Perfetto"
    shell:
        "python -m transformer_core.trace perfetto {input.events} --output {output} 2>&1 | tee {log}"
