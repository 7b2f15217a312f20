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
        families=dump_all(FAMILIES),
    message:
        "Draw conclusions from the families of variants"
    shell:
        "python -m transformer_core.decide.family_curves --families {params.families:q}"
        " --study results/study.json --results results --output {output} 2>&1 | tee {log}"


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
        # A function, because Snakemake reads braces in a string as wildcards.
        claims=dump_all(CLAIMS),
    message:
        "Test the claims"
    shell:
        "python -m transformer_core.decide.claims --claims {params.claims:q}"
        " --study results/study.json --results results --output {output} 2>&1 | tee {log}"
