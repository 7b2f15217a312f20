# results -> figures, tables, one HTML page

VARIANT_FILES = expand(
    "results/runs/{variant}/{name}.json", variant=SPECS, name=["spec", "metrics", "evaluation"]
)
STUDY_FILES = [
    "results/study.json",
    "results/variants.json",
    "results/comparisons.json",
    "results/families.json",
    "results/claims.json",
    "results/search.json",
    "results/machine/hardware.json",
    "results/machine/roofline.json",
    *COLLECTIVES,
    "results/utilisation.json",
    f"results/data/{CORPUS}/tokenizer.report.json",
    *expand(f"results/data/{CORPUS}/pairs/{{split}}.json", split=SPLITS),
    *expand(f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=SPLITS),
    "results/audit.json",
    *expand("results/equivalence/{variant}.json", variant=SPECS),
    *expand("results/profiles/{name}/breakdown.json", name=[*SPECS, *STUDY.traces]),
    *["results/quality.json"] * (STUDY.quality is not None),
    *["results/links/error.json"] * (STUDY.link_check is not None),
    *["results/projection/projection.json"] * (STUDY.projection is not None),
    *MEMORY_FILES,
    *VARIANT_FILES,
]
CONCLUSIONS = [
    f"results/{name}.json" for name in ("comparisons", "families", "claims", "search", "quality")
]
# Work that does not depend on comparisons runs before they use up the study's time.
DONE_FIRST = [file for file in STUDY_FILES if file not in CONCLUSIONS]
STUDY_FILES += ["results/refinement.json"] * (STUDY.time is not None)


rule describe_study:
    # No input, like resolve_spec: only changes of the study and its variants make it stale.
    output:
        study="results/study.json",
        variants="results/variants.json",
    log:
        "results/logs/describe_study.log",
    params:
        study=as_text(STUDY.canonical_json()),
        variants=as_text(as_json(DEFINITIONS)),
    message:
        "Record the study"
    shell:
        "python -m transformer_core.common.digests {output.study} <<< {params.study:q} 2> {log};"
        " python -m transformer_core.common.digests {output.variants} <<< {params.variants:q} 2>> {log}"


rule page:
    input:
        STUDY_FILES,
        expand(
            "results/runs/{variant}/repeat-{repeat}/steps.parquet", variant=SPECS, repeat=REPEATS
        ),
        TIMED,
        expand("results/profiles/{name}/events.parquet", name=[*SPECS, *STUDY.traces]),
    output:
        "results/report.html",
        "results/report.md",
        "results/summary.json",
        expand("results/figures/{name}.svg", name=FIGURES),
        expand("results/tables/{name}.csv", name=TABLES),
    log:
        "results/logs/page.log",
    threads: CORES
    params:
        **job(
            "page",
            output=None,
            results="results",
            processes=lambda wildcards, threads: threads,
        ),
    message:
        "Write the report: results/report.html"
    shell:
        JOB


# these results + those of another commit or machine -> results/compare.html

# As inputs, Snakemake would take the other results for files that this study makes.
THERE = [
    f"{file} {file.stat().st_mtime_ns}"
    for pattern in ("*.json", "equivalence/*.json", "machine/*.json", "runs/*/*.json")
    for file in sorted(Path(AGAINST or os.devnull).glob(pattern))
]


rule against:
    input:
        STUDY_FILES,
        "results/summary.json",
    output:
        "results/against.json",
    log:
        "results/logs/against.log",
    params:
        **job("against", there=AGAINST or "NOT-GIVEN"),
        seen=as_text(THERE),
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
