"""A tokenized split as one Parquet file:
``python -m transformer_core.data.sharding.parquet_export``."""

import argparse
import logging
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from transformer_core.common.endings import in_words, program
from transformer_core.common.files import atomic_path
from transformer_core.common.progress import Progress
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.sharding.shard_store import open_shards, read_manifest
from transformer_core.data.tokenizing.job import load_tokenizer

LOG = logging.getLogger(__name__)

ROW_GROUP = 50_000
SIDES = ("source", "target")


def export_parquet(manifest: Path, tokenizer_path: Path, output: Path) -> int:
    """Write the pairs of a split, as ids and as the text that these stand for; how many they are.

    Columns: source_ids, target_ids (lists of integers, without begin and end), source, target. One
    row group is in memory at a time. Raises CorpusError for damaged shards.
    """
    store = open_shards(manifest)
    tokenizer = load_tokenizer(tokenizer_path, read_manifest(manifest).tokenizer_sha256)
    ids = pa.list_(pa.from_numpy_dtype(store.manifest.id_type))
    schema = pa.schema(
        [(f"{side}_ids", ids) for side in SIDES] + [(side, pa.string()) for side in SIDES],
        metadata={"corpus": store.manifest.corpus, "split": store.manifest.split},
    )
    with (
        atomic_path(output) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
        Progress(f"export {store.manifest.split}", "pairs", len(store)) as progress,
    ):
        for start in range(0, len(store), ROW_GROUP):
            rows = list(range(start, min(start + ROW_GROUP, len(store))))
            sides = [store.source_rows(rows), store.target_rows(rows)]
            columns = [pa.array(side, ids) for side in sides]
            columns += [pa.array(_texts(tokenizer, column), pa.string()) for column in columns]
            writer.write_table(pa.table(columns, schema=schema))
            progress.update(len(rows))
    return len(store)


def _texts(tokenizer: Tokenizer, ids: pa.ListArray) -> list[str]:
    texts: list[str] = tokenizer.decode_batch(ids.to_pylist())
    return texts


@program
def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 if the file was written, 2 if the input is at fault."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.data.sharding.parquet_export",
        description="Write a tokenized split as one Parquet file: source_ids, target_ids, and the "
        "text that they stand for as source, target.",
    )
    parser.add_argument("--manifest", required=True, type=Path, help="manifest.json of the split")
    parser.add_argument("--tokenizer", required=True, type=Path, help="tokenizer.json")
    parser.add_argument("--output", required=True, type=Path, help="Parquet file to write")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        pairs = export_parquet(options.manifest, options.tokenizer, options.output)
    except (CorpusError, OSError) as error:
        print(in_words(error), file=sys.stderr)
        return 2
    LOG.info("%s: %s pairs", options.output, f"{pairs:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
