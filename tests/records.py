"""Records and files that tests of several folders write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.results import LengthHistogram, ShardManifest


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


def write_tree(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes these texts below ``folder``, by path; the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
