"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from transformer_core.common.files import atomic_path, sha256, write_text


def fail_half_way(target: Path) -> None:
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        assert temporary.parent == target.parent
        raise RuntimeError("stop")


def test_atomic_path_replaces_only_after_success(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    write_text(target, "old")
    with pytest.raises(RuntimeError, match="stop"):
        fail_half_way(target)
    assert target.read_text() == "old"
    assert list(target.parent.iterdir()) == [target]
    write_text(target, "neu: ü")
    assert target.read_text(encoding="utf-8") == "neu: ü"


def test_the_checksum_is_that_of_the_contents(tmp_path: Path) -> None:
    write_text(tmp_path / "abc", "abc")
    # FIPS 180-4's example.
    assert sha256(tmp_path / "abc").startswith("ba7816bf8f01cfea414140de5dae2223")
