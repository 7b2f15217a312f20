# runs over a limited link, real and emulated -> the error of the emulated one


rule link_trial_specs:
    # No input, like resolve_spec.
    output:
        real="results/links/{trial}/real_link.json",
        emulated="results/links/{trial}/emulated_link.json",
    log:
        "results/logs/links/{trial}.specs.log",
    params:
        real=lambda wildcards: LINK_TRIALS[wildcards.trial].real.canonical_json(),
        emulated=lambda wildcards: LINK_TRIALS[wildcards.trial].emulated.canonical_json(),
    message:
        "Write the run specs of the trial {wildcards.trial}"
    shell:
        "python -m transformer_core.common.digests {output.real} <<< {params.real:q} 2> {log};"
        " python -m transformer_core.common.digests {output.emulated} <<< {params.emulated:q} 2>> {log}"


rule link_trial:
    input:
        specs=expand("results/links/{{trial}}/{kind}_link.json", kind=["real", "emulated"]),
        shards=SHARDS,
    output:
        "results/links/{trial}.json",
    log:
        "results/logs/links/{trial}.log",
    threads: CORES
    resources:
        **needs(real_link, 2 * OF_A_SIDE, 2),
        timed=1,
    params:
        **job(
            "link_trial",
            of=real_link,
            again="results/links/{trial}",
            output=None,
            outputs=lambda wildcards, output: [output[0]],
            comparing=COMPARING,
            code=CODE["link_trial"],
        ),
    message:
        "Time {wildcards.trial} over a real and an emulated link"
    shell:
        JOB


rule link_error:
    input:
        trials=expand("results/links/{trial}.json", trial=LINK_TRIALS),
    output:
        "results/links/error.json",
    log:
        "results/logs/link_error.log",
    params:
        **job(
            "link_error",
            trials=lambda wildcards, input: [
                (trial.change, trial.bandwidth, file)
                for trial, file in zip(LINK_TRIALS.values(), input.trials)
            ],
        ),
    message:
        "Compare the emulated link with the real one"
    shell:
        JOB
