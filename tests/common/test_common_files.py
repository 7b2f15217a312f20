"""Files are written whole or not at all."""

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from transformer_core.common import files
from transformer_core.common.files import atomic_path, locked, sha256, write_text


def fail_half_way(target: Path) -> None:
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        assert temporary.parent == target.parent
        raise RuntimeError("stop")


def test_atomic_path_replaces_only_after_success(tmp_path):
    target = tmp_path / "deep" / "file.txt"
    write_text(target, "old")
    with pytest.raises(RuntimeError, match="stop"):
        fail_half_way(target)
    assert target.read_text() == "old"
    assert list(target.parent.iterdir()) == [target]
    write_text(target, "neu: ü")
    assert target.read_text(encoding="utf-8") == "neu: ü"


def test_a_full_disk_is_named(tmp_path):
    with (
        pytest.raises(OSError, match=r"No space left.*file\.txt"),
        atomic_path(tmp_path / "file.txt"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as write() raises it
    with pytest.raises(OSError, match=r"^another message$"), atomic_path(tmp_path / "file.txt"):
        raise OSError("another message")


@pytest.mark.skipif(sys.platform != "linux", reason="takes a folder in which nobody may write")
def test_an_error_names_the_file_and_not_the_temporary_one():
    with pytest.raises(OSError, match=r"'/proc/file\.txt'$"):
        write_text(Path("/proc/file.txt"), "")


def test_permissions_that_nobody_changed_are_not_set(tmp_path, monkeypatch):
    """A mount whose files all have one owner and mode, such as CIFS, refuses it."""
    monkeypatch.setattr(Path, "chmod", Mock(side_effect=PermissionError(errno.EPERM, "chmod")))
    write_text(tmp_path / "file.txt", "text")
    assert (tmp_path / "file.txt").read_text() == "text"


def test_the_checksum_is_that_of_the_contents(tmp_path):
    write_text(tmp_path / "abc", "abc")
    # FIPS 180-4's example.
    assert sha256(tmp_path / "abc").startswith("ba7816bf8f01cfea414140de5dae2223")


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    target = tmp_path / "file.json"
    code = (
        "import os, sys; from pathlib import Path; from transformer_core.common.files import *\n"
        "with atomic_path(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    (left,) = tmp_path.iterdir()
    others = tmp_path / left.name.replace(platform.node(), "other-host")
    others.touch()
    write_text(target, "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"file.json", others.name}


def test_a_file_system_without_locks_lets_all_in_or_is_refused(tmp_path, monkeypatch):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with locked(tmp_path / "lock") as lock:
        assert lock.name == str(tmp_path / "lock")
    with pytest.raises(OSError, match="not implemented"), locked(tmp_path / "lock", strict=True):
        pass
