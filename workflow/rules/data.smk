# corpus -> checked pairs -> tokenizer -> Arrow shards


rule read_corpus:
    input:
        code=sources("transformer_core.data.corpora"),
    output:
        pairs=f"results/data/{CORPUS}/pairs/{{split}}.arrow",
        report=f"results/data/{CORPUS}/pairs/{{split}}.json",
    log:
        f"results/logs/read_corpus-{CORPUS}-{{split}}.log",
    params:
        corpus=dump(STUDY.corpus),
        filter=dump(STUDY.filter),
        downloads=f"results/downloads/{CORPUS}",
    message:
        "Read the {wildcards.split} split of the corpus"
    shell:
        "python -m transformer_core.data.corpora --corpus {params.corpus:q}"
        " --filter {params.filter:q} --split {wildcards.split} --downloads {params.downloads}"
        " --pairs {output.pairs} --report {output.report} 2>&1 | tee {log}"


rule tokenizer:
    input:
        pairs=f"results/data/{CORPUS}/pairs/train.arrow",
        code=sources("transformer_core.data.tokenizer"),
    output:
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
        report=f"results/data/{CORPUS}/tokenizer.report.json",
    log:
        f"results/logs/tokenizer-{CORPUS}.log",
    threads: workflow.cores
    params:
        tokenizer=dump(STUDY.tokenizer),
    message:
        "Train the tokenizer"
    shell:
        "python -m transformer_core.data.tokenizer --tokenizer {params.tokenizer:q}"
        " --pairs {input.pairs} --output {output.tokenizer} --report {output.report}"
        " 2>&1 | tee {log}"


rule shards:
    input:
        pairs=f"results/data/{CORPUS}/pairs/{{split}}.arrow",
        report=f"results/data/{CORPUS}/pairs/{{split}}.json",
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
        code=sources("transformer_core.data.shards"),
    output:
        manifest=f"results/data/{CORPUS}/shards/{{split}}/manifest.json",
    log:
        f"results/logs/shards-{CORPUS}-{{split}}.log",
    threads: workflow.cores
    params:
        filter=dump(STUDY.filter),
        folder=lambda wildcards, output: Path(output.manifest).parent,
    message:
        "Tokenize the {wildcards.split} split into Arrow shards"
    shell:
        "python -m transformer_core.data.shards --tokenizer {input.tokenizer}"
        " --filter {params.filter:q} --pairs {input.pairs} --output {params.folder}"
        " 2>&1 | tee {log}"
