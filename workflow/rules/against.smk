# these results + those of another commit or machine -> results/compare.html


rule against:
    input:
        STUDY_FILES,
    output:
        "results/against.json",
    log:
        "results/logs/against.log",
    params:
        **job("against", there=AGAINST or "NOT-GIVEN"),
    message:
        "Compare the results with those of another commit or machine"
    shell:
        JOB


rule compare_page:
    input:
        against="results/against.json",
    output:
        "results/compare.html",
    log:
        "results/logs/compare_page.log",
    params:
        **job("compare_page"),
    message:
        "Write the comparison: results/compare.html"
    shell:
        JOB
