# runs over a limited link, real and emulated -> the error of the emulated one

LINK_TRIALS = PLANNED.link_trials


rule link_trial_specs:
    # No input, like resolve_spec.
    output:
        real="results/links/{trial}/real_link.json",
        emulated="results/links/{trial}/emulated_link.json",
    log:
        "results/logs/links/{trial}.specs.log",
    wildcard_constraints:
        trial="|".join(LINK_TRIALS) or "none",
    params:
        real=lambda wildcards: LINK_TRIALS[wildcards.trial].real.canonical_json(),
        emulated=lambda wildcards: LINK_TRIALS[wildcards.trial].emulated.canonical_json(),
    message:
        "Write the run specs of the trial {wildcards.trial}"
    shell:
        "(printf '%s\\n' {params.real:q} > {output.real};"
        " printf '%s\\n' {params.emulated:q} > {output.emulated}) 2> {log}"


rule link_trial:
    input:
        real="results/links/{trial}/real_link.json",
        emulated="results/links/{trial}/emulated_link.json",
        shards=expand(
            f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
        ),
    output:
        "results/links/{trial}.json",
    log:
        "results/logs/links/{trial}.log",
    wildcard_constraints:
        trial="|".join(LINK_TRIALS) or "none",
    # All cores and the one slot: nothing else may disturb a timed run.
    threads: CORES
    resources:
        **needs(lambda wildcards: [LINK_TRIALS[wildcards.trial].real]),
        timed=1,
    params:
        code=CODE["link_trial"],
        own=lambda wildcards: own_models([LINK_TRIALS[wildcards.trial].real]),
        asked=asked(COMPARING),
        order=lambda wildcards, input, output: order(
            "turns",
            specs=[input.real, input.emulated],
            comparing=COMPARING,
            data=data_of(input),
            outputs=[output[0]],
        ),
    message:
        "Time {wildcards.trial} over a real and an emulated link"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule link_error:
    input:
        trials=expand("results/links/{trial}.json", trial=LINK_TRIALS),
    output:
        "results/links/error.json",
    log:
        "results/logs/link_error.log",
    params:
        code=CODE["link_error"],
        order=lambda wildcards, input, output: order(
            "link_error",
            trials=[
                (trial.change, trial.bandwidth, file)
                for trial, file in zip(LINK_TRIALS.values(), input.trials)
            ],
            output=output[0],
        ),
    message:
        "Compare the emulated link with the real one"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
