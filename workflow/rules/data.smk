# corpus -> checked pairs -> tokenizer -> Arrow shards

# An existing tokenizer.
TOKENIZER_FILES = [] if STUDY.tokenizer.kind == "bpe" else [STUDY.tokenizer.path]
# One job writes the shards of a split, unless several are requested.
SCATTERED = len(PART_MANIFESTS) > 1
# Texts of a language model are cut into rows.
CONTEXT = {"context": STUDY.task.context} if STUDY.task.kind == "language_model" else {}


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
        asked=asked(STUDY.corpus, STUDY.filter),
        seen=lambda wildcards: seen_of(corpus_files(STUDY.corpus, wildcards.split)),
        order=lambda wildcards, output, threads: order(
            "read_corpus",
            corpus=STUDY.corpus,
            filter=STUDY.filter,
            split=wildcards.split,
            pairs=output.pairs,
            report=output.report,
            downloads=f"results/downloads/{CORPUS}",
            processes=threads,
        ),
    message:
        "Read the {wildcards.split} split of the corpus"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


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
        asked=asked(STUDY.tokenizer),
        seen=as_text(seen_of(TOKENIZER_FILES)),
        order=lambda wildcards, input, output: order(
            "tokenizer",
            tokenizer=STUDY.tokenizer,
            pairs=input.pairs,
            output=output.tokenizer,
            report=output.report,
        ),
    message:
        "Train the tokenizer" if STUDY.tokenizer.kind == "bpe" else "Convert the tokenizer"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


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
        asked=asked(STUDY.filter, CONTEXT),
        order=shards_order,
    message:
        "Tokenize the {wildcards.split} split into Arrow shards"
    shell:
        "WARM_STARTS=off python -m transformer_core.run.quick_start"
        " transformer_core.run.job --order {params.order:q} --log-file {log}"


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
            asked=asked(STUDY.filter, CONTEXT),
            order=shards_order,
        message:
            "Tokenize part {wildcards.scatteritem} of the training pairs into Arrow shards"
        shell:
            "WARM_STARTS=off python -m transformer_core.run.quick_start"
            " transformer_core.run.job --order {params.order:q} --log-file {log}"

    rule gather_shards:
        input:
            parts=PART_MANIFESTS,
        output:
            manifest=f"{TRAIN_SHARDS}/manifest.json",
        log:
            f"results/logs/gather_shards-{CORPUS}.log",
        params:
            code=CODE["gather_shards"],
            asked=asked(STUDY.filter),
            order=lambda wildcards, input, output: order(
                "gather_shards", filter=STUDY.filter, parts=list(input.parts), output=output[0]
            ),
        message:
            "Merge the parts of the training split"
        shell:
            "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule verify_data:
    input:
        manifests=expand(f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=SPLITS),
    output:
        record=f"results/data/{CORPUS}/verify.json",
    log:
        f"results/logs/verify_data-{CORPUS}.log",
    params:
        code=CODE["verify_data"],
        order=lambda wildcards, input, output: order(
            "verify_data", manifests=list(input.manifests), output=output[0]
        ),
    message:
        "Compare every shard with its checksum"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


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
        order=lambda wildcards, input, output: order(
            "export_parquet", manifest=input.manifest, tokenizer=input.tokenizer, output=output[0]
        ),
    message:
        "Write the {wildcards.split} split as Parquet"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
