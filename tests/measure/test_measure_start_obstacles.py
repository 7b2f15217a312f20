"""What a host lacks is named, with the remedy."""

import resource
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from transformer_core.run import supervisor
from transformer_core.run.supervisor import no_loopback, obstacle

Usage = namedtuple("Usage", "total used free")


def test_a_host_that_has_it_all(tmp_path: Path) -> None:
    assert obstacle(tmp_path, threads=4) is None


def test_too_few_files(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 8, before[1])
    )
    try:
        found = obstacle(tmp_path, threads=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found is not None
    assert found.startswith("Too few files may be open")
    assert "ulimit -n" in found


def test_too_few_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = iter(range(5))

    def start(self: object) -> None:
        if next(started, None) is None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(supervisor.threading.Thread, "start", start)
    monkeypatch.setattr(supervisor.threading.Thread, "join", lambda self: None)
    found = obstacle(tmp_path, threads=100_000)
    assert found is not None
    assert "starts 5 more threads of the 100000" in found
    assert "machine.threads" in found


@pytest.mark.parametrize("full", ["/dev/shm", "results"])
def test_a_full_disk(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "results"

    def usage(path: Path) -> Usage:
        return Usage(9, 9, 4096 if str(path).endswith(full) else 1 << 40)

    monkeypatch.setattr(supervisor.shutil, "disk_usage", usage)
    found = obstacle(folder, threads=1)
    assert found is not None
    assert f"{full} is full: 4096 bytes are free" in found
    assert "make" in found or "give it more room" in found


def test_no_loopback() -> None:
    program = "from transformer_core.run.supervisor import no_loopback\nprint(no_loopback())"
    command = ["unshare", "-Urn", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip(f"network namespaces cannot be made here: {done.stderr}")
    assert "cannot reach one another at 127.0.0.1" in done.stdout
    assert "ip link set lo up" in done.stdout
    assert no_loopback() is None
