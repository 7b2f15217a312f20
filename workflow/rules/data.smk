# corpus -> checked pairs -> tokenizer -> Arrow shards

# An existing tokenizer.
TOKENIZER_FILES = [] if STUDY.tokenizer.kind == "bpe" else [STUDY.tokenizer.path]
# Each split is tokenized by one job, unless more are requested.
SCATTERED = len(PART_MANIFESTS) > 1
# Texts of a language model are cut into rows.
CONTEXT = STUDY.task.context if STUDY.task.kind == "language_model" else None
TO_SHARDS = {
    "filter": STUDY.filter,
    "context": CONTEXT,
    "output": lambda wildcards, output: Path(output[0]).parent,
    "threads": lambda wildcards, threads: threads,
}


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
        **job(
            "read_corpus",
            corpus=STUDY.corpus,
            filter=STUDY.filter,
            split=lambda wildcards: wildcards.split,
            downloads=f"results/downloads/{CORPUS}",
            processes=lambda wildcards, threads: threads,
            output=None,
        ),
        seen=lambda wildcards: seen_of(corpus_files(STUDY.corpus, wildcards.split)),
    message:
        "Read the {wildcards.split} split of the corpus"
    shell:
        JOB


rule tokenizer:
    input:
        without_braces(TOKENIZER_FILES),
        pairs=f"results/data/{CORPUS}/pairs/train.arrow",
    output:
        f"results/data/{CORPUS}/tokenizer.json",
        report=f"results/data/{CORPUS}/tokenizer.report.json",
    log:
        f"results/logs/tokenizer-{CORPUS}.log",
    threads: CORES
    params:
        **job("tokenizer", tokenizer=STUDY.tokenizer),
        seen=as_text(seen_of(TOKENIZER_FILES)),
    message:
        "Train the tokenizer" if STUDY.tokenizer.kind == "bpe" else "Convert the tokenizer"
    shell:
        JOB


rule shards:
    input:
        f"results/data/{CORPUS}/pairs/{{split}}.json",
        pairs=f"results/data/{CORPUS}/pairs/{{split}}.arrow",
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
    output:
        f"results/data/{CORPUS}/shards/{{split}}/manifest.json",
    log:
        f"results/logs/shards-{CORPUS}-{{split}}.log",
    wildcard_constraints:
        split="|".join(split for split in SPLITS if split != "train" or not SCATTERED),
    threads: CORES
    params:
        **job("shards", **TO_SHARDS),
    message:
        "Tokenize the {wildcards.split} split into Arrow shards"
    shell:
        COLD_JOB


if SCATTERED:

    rule shards_part:
        input:
            f"results/data/{CORPUS}/pairs/train.json",
            pairs=f"results/data/{CORPUS}/pairs/train.arrow",
            tokenizer=f"results/data/{CORPUS}/tokenizer.json",
        output:
            f"{TRAIN_SHARDS}/part-{{scatteritem}}/manifest.json",
        log:
            f"results/logs/shards-{CORPUS}-train-{{scatteritem}}.log",
        threads: CORES
        params:
            **job("shards_part", part=lambda wildcards: wildcards.scatteritem, **TO_SHARDS),
        message:
            "Tokenize part {wildcards.scatteritem} of the training pairs into Arrow shards"
        shell:
            COLD_JOB

    rule gather_shards:
        input:
            parts=PART_MANIFESTS,
        output:
            f"{TRAIN_SHARDS}/manifest.json",
        log:
            f"results/logs/gather_shards-{CORPUS}.log",
        params:
            **job("gather_shards", filter=STUDY.filter),
        message:
            "Merge the parts of the training split"
        shell:
            JOB


rule verify_data:
    input:
        manifests=expand(f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=SPLITS),
    output:
        f"results/data/{CORPUS}/verify.json",
    log:
        f"results/logs/verify_data-{CORPUS}.log",
    params:
        **job("verify_data"),
    message:
        "Compare every shard with its checksum"
    shell:
        JOB


rule export_parquet:
    input:
        manifest=f"results/data/{CORPUS}/shards/{{split}}/manifest.json",
        tokenizer=f"results/data/{CORPUS}/tokenizer.json",
    output:
        f"results/data/{CORPUS}/parquet/{{split}}.parquet",
    log:
        f"results/logs/export_parquet-{CORPUS}-{{split}}.log",
    params:
        **job("export_parquet"),
    message:
        "Write the {wildcards.split} split as Parquet"
    shell:
        JOB
