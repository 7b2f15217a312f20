"""Records and files that tests of several folders write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.results import LengthHistogram, Refinement, ShardManifest, Unsettled


def manifest(**fields: Any) -> ShardManifest:
    """The manifest of a split without shards, with these ``fields`` in place of the usual ones."""
    usual: dict[str, Any] = {
        "corpus": "small",
        "split": "train",
        "source_tokens": 0,
        "target_tokens": 0,
        "skipped_too_long": 0,
        "examples": [],
        "id_type": "uint16",
        "tokenizer_sha256": "0" * 64,
        "lengths": LengthHistogram(unit="tokens", source={}, target={}),
        "seconds": 1.0,
        "shards": [],
    }
    return ShardManifest(**(usual | fields))


def refinement(*unsettled: Unsettled) -> Refinement:
    """A refinement of 10 minutes that left these comparisons undecided."""
    return Refinement(
        asked_seconds=600.0,
        began_at_seconds=400.0,
        kept_seconds=30.0,
        ended_at_seconds=565.0,
        stints=[],
        unsettled=list(unsettled),
    )


def write_tree(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes these texts below ``folder``, by path; the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
