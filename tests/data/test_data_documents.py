"""What docs/data.md shows works as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
from pair_files import make_store

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize(("library", "name"), [("pandas", "shard"), ("datasets", "shards")])
def test_two_lines_open_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, name: str
) -> None:
    imported = pytest.importorskip(library)
    if library == "datasets":
        monkeypatch.setattr(imported.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (block,) = [block for block in BLOCKS if f" {library} " in block]
    assert len([line for line in block.splitlines() if line]) == 2
    store = make_store(tmp_path)
    rows = {
        side: [row.tolist() for row in getattr(store, f"{side}_rows")(range(25))]
        for side in ("source", "target")
    }
    split = tmp_path / "results/data/grammar/shards/train"
    split.parent.mkdir(parents=True)
    (tmp_path / "shards").rename(split)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(block, found)
    for side, wanted in rows.items():
        assert [list(row) for row in found[name][side][:25]] == wanted
