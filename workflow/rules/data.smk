# corpus -> checked pairs -> tokenizer -> Arrow shards

# An existing tokenizer.
TOKENIZER_FILES = [] if STUDY.tokenizer.kind == "bpe" else [STUDY.tokenizer.path]
# One job writes the shards of a split, unless several are requested.
SCATTERED = len(PART_MANIFESTS) > 1
# Texts of a language model are cut into rows.
CONTEXT = f" --context {STUDY.task.context}" if STUDY.task.kind == "language_model" else ""


rule read_corpus:
    input:
        lambda wildcards: without_braces(corpus_files(STUDY.corpus, wildcards.split)),
    output:
        pairs=f"results/data/{CORPUS}/pairs/{{split}}.arrow",
        report=f"results/data/{CORPUS}/pairs/{{split}}.json",
    log:
        f"results/logs/read_corpus-{CORPUS}-{{split}}.log",
    threads: generating_processes
    params:
        code=CODE["read_corpus"],
        corpus=dump(STUDY.corpus),
        seen=lambda wildcards: seen_of(corpus_files(STUDY.corpus, wildcards.split)),
        filter=dump(STUDY.filter),
        downloads=f"results/downloads/{CORPUS}",
    message:
        "Read the {wildcards.split} split of the corpus"
    shell:
        "python -m transformer_core.data.corpus.job --corpus {params.corpus:q}"
        " --filter {params.filter:q} --split {wildcards.split} --downloads {params.downloads}"
        " --processes {threads} --pairs {output.pairs} --report {output.report} 2>&1 | tee {log}"


rule tokenizer:
    input:
        pairs=f"results/data/{CORPUS}/pairs/train.arrow",
        source=without_braces(TOKENIZER_FILES),
    output:
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
        report=f"results/data/{CORPUS}/tokenizer.report.json",
    log:
        f"results/logs/tokenizer-{CORPUS}.log",
    threads: CORES
    params:
        code=CODE["tokenizer"],
        tokenizer=dump(STUDY.tokenizer),
        seen=as_text(seen_of(TOKENIZER_FILES)),
    message:
        "Train the tokenizer" if STUDY.tokenizer.kind == "bpe" else "Convert the tokenizer"
    shell:
        "python -m transformer_core.data.tokenizing.job --tokenizer {params.tokenizer:q}"
        " --pairs {input.pairs} --output {output.tokenizer} --report {output.report}"
        " 2>&1 | tee {log}"


# A quick start, for small corpora, but not a warm one: importing here takes no longer than asking
# a server that has imported everything.
rule shards:
    input:
        pairs=f"results/data/{CORPUS}/pairs/{{split}}.arrow",
        report=f"results/data/{CORPUS}/pairs/{{split}}.json",
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
    output:
        manifest=f"results/data/{CORPUS}/shards/{{split}}/manifest.json",
    log:
        f"results/logs/shards-{CORPUS}-{{split}}.log",
    wildcard_constraints:
        split="|".join(split for split in SPLITS if split != "train" or not SCATTERED),
    threads: CORES
    params:
        code=CODE["shards"],
        filter=dump(STUDY.filter),
        context=CONTEXT,
        folder=lambda wildcards, output: Path(output.manifest).parent,
    message:
        "Tokenize the {wildcards.split} split into Arrow shards"
    shell:
        "WARM_STARTS=off python -m transformer_core.run.quick_start"
        " transformer_core.data.sharding.job --tokenizer {input.tokenizer} --threads {threads}"
        " --filter {params.filter:q} --pairs {input.pairs} --output {params.folder}{params.context}"
        " 2>&1 | tee {log}"


if SCATTERED:

    rule shards_part:
        input:
            pairs=f"results/data/{CORPUS}/pairs/train.arrow",
            report=f"results/data/{CORPUS}/pairs/train.json",
            tokenizer=f"results/data/{CORPUS}/tokenizer.json",
        output:
            manifest=f"{TRAIN_SHARDS}/part-{{scatteritem}}/manifest.json",
        log:
            f"results/logs/shards-{CORPUS}-train-{{scatteritem}}.log",
        threads: CORES
        params:
            code=CODE["shards_part"],
            filter=dump(STUDY.filter),
            context=CONTEXT,
            folder=lambda wildcards, output: Path(output.manifest).parent,
        message:
            "Tokenize part {wildcards.scatteritem} of the training pairs into Arrow shards"
        shell:
            "WARM_STARTS=off python -m transformer_core.run.quick_start"
            " transformer_core.data.sharding.job --tokenizer {input.tokenizer}"
            " --threads {threads} --part {wildcards.scatteritem}"
            " --filter {params.filter:q} --pairs {input.pairs} --output {params.folder}{params.context}"
            " 2>&1 | tee {log}"

    rule gather_shards:
        input:
            parts=PART_MANIFESTS,
        output:
            manifest=f"{TRAIN_SHARDS}/manifest.json",
        log:
            f"results/logs/gather_shards-{CORPUS}.log",
        params:
            code=CODE["gather_shards"],
            filter=dump(STUDY.filter),
        message:
            "Merge the parts of the training split"
        shell:
            "python -m transformer_core.data.sharding.merge_parts --filter {params.filter:q}"
            " --output {output.manifest} {input.parts} 2>&1 | tee {log}"


rule verify_data:
    input:
        manifests=expand(f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=SPLITS),
    output:
        record=f"results/data/{CORPUS}/verify.json",
    log:
        f"results/logs/verify_data-{CORPUS}.log",
    params:
        code=CODE["verify_data"],
    message:
        "Compare every shard with its checksum"
    shell:
        "python -m transformer_core.data.sharding.verify --output {output.record} {input.manifests}"
        " 2>&1 | tee {log}"


rule export_parquet:
    input:
        manifest=f"results/data/{CORPUS}/shards/{{split}}/manifest.json",
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
    output:
        table=f"results/data/{CORPUS}/parquet/{{split}}.parquet",
    log:
        f"results/logs/export_parquet-{CORPUS}-{{split}}.log",
    params:
        code=CODE["export_parquet"],
    message:
        "Write the {wildcards.split} split as Parquet"
    shell:
        "python -m transformer_core.data.sharding.parquet_export --manifest {input.manifest}"
        " --tokenizer {input.tokenizer} --output {output.table} 2>&1 | tee {log}"
