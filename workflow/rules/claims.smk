# comparisons, certificates, measurements -> curves of the families, verdicts on the claims

CONCLUDED_FROM = [
    "results/study.json",
    "results/comparisons.json",
    *expand("results/runs/{variant}/metrics.json", variant=SPECS),
    *expand("results/equivalence/{variant}.json", variant=SPECS),
]


rule families:
    input:
        CONCLUDED_FROM,
    output:
        "results/families.json",
    log:
        "results/logs/families.log",
    params:
        code=CODE["families"],
        asked=asked(FAMILIES),
        order=lambda wildcards, output: order("families", families=FAMILIES, output=output[0]),
    message:
        "Draw conclusions from the families of variants"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule claims:
    input:
        CONCLUDED_FROM,
        "results/families.json",
        # The files that claims name and this study makes: other claims are not testable.
        measured=sorted({*claim_files(CLAIMS)} & {*known_targets(STUDY, EXTRA_PAIRS)}),
    output:
        "results/claims.json",
    log:
        "results/logs/claims.log",
    params:
        code=CODE["claims"],
        asked=asked(CLAIMS),
        order=lambda wildcards, output: order("claims", claims=CLAIMS, output=output[0]),
    message:
        "Test the claims"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
