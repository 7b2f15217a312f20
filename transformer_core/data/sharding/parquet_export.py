"""A tokenized split as one Parquet file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from transformer_core.common.files import atomic_path
from transformer_core.common.job import Job
from transformer_core.common.progress import Progress, log
from transformer_core.data.sharding.shard_store import open_shards, read_manifest
from transformer_core.data.tokenizing.job import load_tokenizer

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


class ExportParquet(Job):
    """To write a tokenized split as one Parquet file: source_ids, target_ids, and the text that they
    stand for as source, target."""

    kind = "export_parquet"

    manifest: Path
    """manifest.json of the split."""
    tokenizer: Path
    """tokenizer.json."""
    output: Path
    """Parquet file to write."""

    def run(self, log_file: Path | None) -> None:
        pairs = export_parquet(self.manifest, self.tokenizer, self.output)
        log.info("%s: %s pairs", self.output, f"{pairs:,}")
