# corpus -> checked pairs -> tokenizer -> Arrow shards

# One job makes the shards of a split, unless several are asked for.
SCATTERED = len(PART_MANIFESTS) > 1


rule read_corpus:
    input:
        code=sources("transformer_core.data.corpora"),
    output:
        pairs=f"results/data/{CORPUS}/pairs/{{split}}.arrow",
        report=f"results/data/{CORPUS}/pairs/{{split}}.json",
    log:
        f"results/logs/read_corpus-{CORPUS}-{{split}}.log",
    threads: generating_processes
    params:
        corpus=dump(STUDY.corpus),
        filter=dump(STUDY.filter),
        downloads=f"results/downloads/{CORPUS}",
    message:
        "Read the {wildcards.split} split of the corpus"
    shell:
        "python -m transformer_core.data.corpora --corpus {params.corpus:q}"
        " --filter {params.filter:q} --split {wildcards.split} --downloads {params.downloads}"
        " --processes {threads} --pairs {output.pairs} --report {output.report} 2>&1 | tee {log}"


rule tokenizer:
    input:
        pairs=f"results/data/{CORPUS}/pairs/train.arrow",
        source=[STUDY.tokenizer.path] if STUDY.tokenizer.kind != "bpe" else [],
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
        "Train the tokenizer" if STUDY.tokenizer.kind == "bpe" else "Convert the tokenizer"
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
    wildcard_constraints:
        split="|".join(split for split in SPLITS if split != "train" or not SCATTERED),
    threads: workflow.cores
    params:
        filter=dump(STUDY.filter),
        folder=lambda wildcards, output: Path(output.manifest).parent,
    message:
        "Tokenize the {wildcards.split} split into Arrow shards"
    shell:
        "python -m transformer_core.data.shards --tokenizer {input.tokenizer} --threads {threads}"
        " --filter {params.filter:q} --pairs {input.pairs} --output {params.folder}"
        " 2>&1 | tee {log}"


if SCATTERED:

    rule shards_part:
        input:
            pairs=f"results/data/{CORPUS}/pairs/train.arrow",
            report=f"results/data/{CORPUS}/pairs/train.json",
            tokenizer=f"results/data/{CORPUS}/tokenizer.json",
            code=sources("transformer_core.data.shards"),
        output:
            manifest=f"{TRAIN_SHARDS}/part-{{scatteritem}}/manifest.json",
        log:
            f"results/logs/shards-{CORPUS}-train-{{scatteritem}}.log",
        threads: workflow.cores
        params:
            filter=dump(STUDY.filter),
            folder=lambda wildcards, output: Path(output.manifest).parent,
        message:
            "Tokenize part {wildcards.scatteritem} of the training pairs into Arrow shards"
        shell:
            "python -m transformer_core.data.shards --tokenizer {input.tokenizer}"
            " --threads {threads} --part {wildcards.scatteritem}"
            " --filter {params.filter:q} --pairs {input.pairs} --output {params.folder}"
            " 2>&1 | tee {log}"

    rule gather_shards:
        input:
            parts=PART_MANIFESTS,
            code=sources("transformer_core.data.gather"),
        output:
            manifest=f"{TRAIN_SHARDS}/manifest.json",
        log:
            f"results/logs/gather_shards-{CORPUS}.log",
        params:
            filter=dump(STUDY.filter),
        message:
            "Put the parts of the training split together"
        shell:
            "python -m transformer_core.data.gather --filter {params.filter:q}"
            " --output {output.manifest} {input.parts} 2>&1 | tee {log}"


rule verify_data:
    input:
        manifests=expand(f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=SPLITS),
        code=sources("transformer_core.data.integrity"),
    output:
        record=f"results/data/{CORPUS}/verify.json",
    log:
        f"results/logs/verify_data-{CORPUS}.log",
    message:
        "Compare every shard with its checksum"
    shell:
        "python -m transformer_core.data.integrity --output {output.record} {input.manifests}"
        " 2>&1 | tee {log}"


rule export_parquet:
    input:
        manifest=f"results/data/{CORPUS}/shards/{{split}}/manifest.json",
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
        code=sources("transformer_core.data.export"),
    output:
        table=f"results/data/{CORPUS}/parquet/{{split}}.parquet",
    log:
        f"results/logs/export_parquet-{CORPUS}-{{split}}.log",
    message:
        "Write the {wildcards.split} split as Parquet"
    shell:
        "python -m transformer_core.data.export --manifest {input.manifest}"
        " --tokenizer {input.tokenizer} --output {output.table} 2>&1 | tee {log}"
