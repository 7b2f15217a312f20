# results -> tables, figures, one HTML page

VARIANT_FILES = expand(
    "results/runs/{variant}/{name}.json", variant=SPECS, name=["spec", "metrics"]
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
# The variants as defined, and their parents.
DEFINITIONS = json.dumps(
    {
        name: VARIANTS[name].model_dump(mode="json")
        for name in dict.fromkeys(
            ancestor for name in SPECS for ancestor in lineage(name, VARIANTS)
        )
    }
)


rule describe_study:
    # No input, like resolve_spec: only the part of the study that the report shows makes it stale.
    output:
        study="results/study.json",
        variants="results/variants.json",
    log:
        "results/logs/describe_study.log",
    params:
        study=dump(STUDY),
        variants=as_text(DEFINITIONS),
        seals=lambda wildcards, output: [
            sealing(output.study, STUDY.canonical_json()),
            sealing(output.variants, DEFINITIONS),
        ],
    message:
        "Record the study"
    shell:
        "(printf '%s\\n' {params.study:q} > {output.study};"
        " printf '%s\\n' {params.variants:q} > {output.variants};"
        " {params.seals[0]}; {params.seals[1]}) 2> {log}"


rule tables:
    input:
        STUDY_FILES,
    output:
        expand("results/tables/{name}.csv", name=TABLES),
    log:
        "results/logs/tables.log",
    params:
        code=CODE["tables"],
    message:
        "Write the tables"
    shell:
        "python -m transformer_core.report.tables --results results 2>&1 | tee {log}"


rule figures:
    input:
        STUDY_FILES,
        steps=expand(
            "results/runs/{variant}/repeat-{repeat}/steps.parquet", variant=SPECS, repeat=REPEATS
        ),
        timed=TIMED,
        events=expand("results/profiles/{name}/events.parquet", name=[*SPECS, *STUDY.traces]),
    output:
        expand("results/figures/{name}.svg", name=FIGURES),
    log:
        "results/logs/figures.log",
    threads: CORES
    params:
        code=CODE["figures"],
    message:
        "Draw the figures"
    shell:
        "python -m transformer_core.report.figures --results results --processes {threads} 2>&1 | tee {log}"


rule page:
    input:
        STUDY_FILES,
        figures=expand("results/figures/{name}.svg", name=FIGURES),
        tables=expand("results/tables/{name}.csv", name=TABLES),
    output:
        page="results/report.html",
        brief="results/report.md",
        summary="results/summary.json",
    log:
        "results/logs/page.log",
    params:
        code=CODE["page"],
    message:
        "Write the report: results/report.html"
    shell:
        "python -m transformer_core.report.page --results results --output {output.page} 2>&1 | tee {log}"
