"""The limits of the machine, and what the variants make of them, as the report reads them."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import ConfigError, ConfigProblem
from schemas.results import COLLECTIVE_COLUMNS, CollectiveRun, Roofline, Utilisation
from transformer_core.analysis.files import read_as, read_record
from transformer_core.report.inputs import Results


def read_limits(results: Results) -> Roofline:
    """results/machine/roofline.json; ConfigError if it is missing or wrong."""
    return read_record(results.folder / "machine" / "roofline.json", Roofline)


def read_utilisation(results: Results) -> list[Utilisation]:
    """results/utilisation.json; ConfigError if it is missing or wrong."""
    found: list[Utilisation] = read_as(results.folder / "utilisation.json", list[Utilisation])
    return found


def read_collectives(results: Results) -> tuple[CollectiveRun, pd.DataFrame]:
    """results/machine/collectives.parquet, a row per operation and size, and how it came about;
    ConfigError if it is missing or wrong."""
    path = results.folder / "machine" / "collectives.parquet"
    try:
        table = pq.read_table(path, columns=list(COLLECTIVE_COLUMNS))
        run = CollectiveRun.model_validate_json((table.schema.metadata or {})[b"study"])
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise _unusable(path, error) from None
    return run, table.to_pandas()


def bucket_bytes(results: Results) -> dict[str, list[int]]:
    """Sizes of the gradient buckets of the variants with DistributedDataParallel that ran."""
    found = {}
    for name, result in results.variants.items():
        told = next((repeat.communication for repeat in result.repeats if repeat.communication), {})
        if told.get("bucket_bytes"):
            found[name] = [int(size) for size in told["bucket_bytes"]]
    return found


def _unusable(path: Path, error: Exception) -> ConfigError:
    remedy = f"make it again: snakemake --cores all {path} --force"
    return ConfigError([ConfigProblem(str(path), "(file)", None, str(error), remedy)])
