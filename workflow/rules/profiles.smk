# run spec -> a few profiled steps, one trace per rank -> what the devices did in them


rule profile:
    input:
        spec="results/runs/{variant}/spec.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
        code=sources("transformer_core.profiling.capture_worker", without=OBSERVERS),
        own=lambda wildcards: own_model(SPECS[wildcards.variant]),
    output:
        "results/profiles/{variant}/capture.json",
    log:
        "results/profiles/{variant}/run.log",
    # Like a timed run: what else ran at the time would show in the trace.
    threads: workflow.cores
    resources:
        **needs(lambda wildcards: [SPECS[wildcards.variant]]),
        timed=1,
    params:
        data=lambda wildcards, input: Path(input.shards[0]).parents[2],
        folder=lambda wildcards, output: Path(output[0]).parent,
        profiling=dump(STUDY.profiling),
    message:
        "Profile {wildcards.variant}"
    shell:
        "python -m transformer_core.profiling.capture --spec {input.spec} --data {params.data}"
        " --profiling {params.profiling:q} --output {params.folder} --log-file {log}"


rule breakdown:
    input:
        capture="results/profiles/{variant}/capture.json",
        code=sources("transformer_core.profiling.__main__"),
    output:
        breakdown="results/profiles/{variant}/breakdown.json",
        events="results/profiles/{variant}/events.parquet",
    log:
        "results/logs/breakdown-{variant}.log",
    message:
        "Break down the profile of {wildcards.variant}"
    shell:
        "python -m transformer_core.profiling --capture {input.capture}"
        " --events {output.events} --output {output.breakdown} 2>&1 | tee {log}"


rule breakdown_of_traces:
    # Files that the user brought: --config 'traces={"name": ["file", ...]}'
    input:
        files=lambda wildcards: STUDY.traces[wildcards.trace],
        code=sources("transformer_core.profiling.__main__"),
    output:
        breakdown="results/profiles/{trace}/breakdown.json",
        events="results/profiles/{trace}/events.parquet",
    log:
        "results/logs/breakdown_of_traces-{trace}.log",
    wildcard_constraints:
        trace="|".join(STUDY.traces) or "none",
    message:
        "Break down the traces of {wildcards.trace}"
    shell:
        "python -m transformer_core.profiling {input.files:q} --name {wildcards.trace}"
        " --events {output.events} --output {output.breakdown} 2>&1 | tee {log}"
