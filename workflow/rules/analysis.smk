# results of the runs -> comparisons


rule compare:
    input:
        results=expand("results/runs/{variant}/metrics.json", variant=SPECS),
        certificates=expand("results/equivalence/{variant}.json", variant=SPECS),
        code=sources("transformer_core.analysis.compare"),
    output:
        "results/comparisons.json",
    log:
        "results/logs/compare.log",
    params:
        baseline=STUDY.baseline,
    message:
        "Compare the variants with {params.baseline}"
    shell:
        "python -m transformer_core.analysis.compare --baseline {params.baseline}"
        " --results {input.results} --certificates {input.certificates} --output {output} 2>&1 | tee {log}"
