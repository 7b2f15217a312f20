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
        **job("families", families=FAMILIES),
    message:
        "Draw conclusions from the families of variants"
    shell:
        QUICK_JOB


rule claims:
    input:
        CONCLUDED_FROM,
        "results/families.json",
        # The files that claims name, if this study makes them; other claims are not testable.
        sorted({*claim_files(CLAIMS)} & {*known_targets(STUDY, EXTRA_PAIRS)}),
    output:
        "results/claims.json",
    log:
        "results/logs/claims.log",
    params:
        **job("claims", claims=CLAIMS),
    message:
        "Test the claims"
    shell:
        QUICK_JOB
