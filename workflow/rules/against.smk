# these results + those of another commit or machine -> results/compare.html


rule against:
    input:
        STUDY_FILES,
    output:
        "results/against.json",
    log:
        "results/logs/against.log",
    params:
        code=CODE["against"],
        there=as_text(str(AGAINST or "NOT-GIVEN")),
        order=lambda wildcards, output: order(
            "against", there=AGAINST or "NOT-GIVEN", output=output[0]
        ),
    message:
        "Compare the results with those in {params.there}"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule compare_page:
    input:
        against="results/against.json",
    output:
        "results/compare.html",
    log:
        "results/logs/compare_page.log",
    params:
        code=CODE["compare_page"],
        order=lambda wildcards, input, output: order(
            "compare_page", against=input.against, output=output[0]
        ),
    message:
        "Write the comparison: results/compare.html"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
