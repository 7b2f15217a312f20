"""GPUs for a job: the visible ones, and exclusive leases. Locked folders."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from schemas.errors import Refusal
from transformer_core.common.folder_locks import exclusive, workplace
from transformer_core.parallel import nvml
from transformer_core.parallel.nvml import visible_gpus
from transformer_core.run import gpu_leases
from transformer_core.run.gpu_leases import (
    forget_those_of_another_host,
    lease,
    lease_folder,
)

ALL = ["GPU-a", "GPU-b", "GPU-c"]


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, [*ALL, "GPU-8932f937"]),
        ("", []),
        ("2,0", ["GPU-c", "GPU-a"]),
        ("1,7,0", ["GPU-b"]),
        ("0,GPU-a,1", ["GPU-a", "GPU-b"]),
        ("GPU-c, GPU-a", ["GPU-c", "GPU-a"]),
        ("MIG-x", ["MIG-x"]),
        ("-1", []),
        ("GPU-89,1", ["GPU-8932f937", "GPU-b"]),  # CUDA takes the beginning of a UUID, too
        ("GPU-", ["GPU-"]),
    ],
)
def test_the_gpus_that_a_process_sees(monkeypatch, variable, seen):
    monkeypatch.setattr(nvml, "uuids", lambda: [*ALL, "GPU-8932f937"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == seen


@pytest.mark.parametrize(
    ("variable", "kept"),
    [
        ("GPU-x,GPU-y", None),
        ("GPU-x, GPU-b", "GPU-x, GPU-b"),
        ("GPU-", "GPU-"),  # the beginning of several
        ("0,1", "0,1"),
        ("MIG-x", "MIG-x"),
        ("", ""),
    ],
)
def test_gpus_leased_on_another_host_are_not_those_of_this_one(monkeypatch, variable, kept):
    """srun hands on the variables of the first host."""
    monkeypatch.setattr(nvml, "uuids", lambda: ALL)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    forget_those_of_another_host()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == kept
    monkeypatch.setattr(nvml, "uuids", list)  # NVML cannot be used
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    forget_those_of_another_host()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == variable


def test_a_waiting_lease_holds_nothing(tmp_path, monkeypatch):
    held = lease(ALL, 2, tmp_path)

    def let_go(seconds: float) -> None:
        # The waiting lease holds nothing, so a third can take the free GPU.
        assert list(lease(ALL, 1, tmp_path)) == ["GPU-c"]
        for file in held.values():
            file.close()

    monkeypatch.setattr(gpu_leases.time, "sleep", let_go)
    assert list(lease(ALL, 3, tmp_path)) == ALL


def test_slices_may_have_their_older_names(tmp_path):
    slices = ["MIG-GPU-a/1/0", "MIG-GPU-a/2/0"]
    held = lease(slices, 1, tmp_path)
    assert [*held, *lease(slices, 1, tmp_path)] == slices


def test_a_lease_of_more_gpus_than_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match="4 GPUs are requested, but only 3 are visible"):
        lease(ALL, 4, tmp_path)


def test_a_file_system_without_locks_is_an_error(tmp_path, monkeypatch):
    """Some network file systems have none."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(gpu_leases.time, "sleep", lambda seconds: pytest.fail("it waits"))
    with pytest.raises(OSError, match="No locks available"):
        lease(ALL, 1, tmp_path)


SEEN = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"


def leased(count: int, command: str) -> str:
    return f"from {gpu_leases.__name__} import lease_here\nlease_here({count})\n{command}"


def run(count: int, command: str, **environment: str) -> str:
    """The output of a process that has leased this number of GPUs."""
    return subprocess.check_output(
        [sys.executable, "-c", leased(count, command)],
        env=os.environ | {"XDG_RUNTIME_DIR": ""} | environment,
        text=True,
    ).strip()


def test_a_job_sees_its_own_gpus_by_uuid_as_long_as_it_runs(tmp_path):
    everything = ",".join(ALL)
    nested = f"""{SEEN}
import subprocess, sys
print(os.environ["CUDA_DEVICE_ORDER"], flush=True)  # before the other one prints
environment = os.environ | {{"CUDA_VISIBLE_DEVICES": "{everything}"}}
subprocess.run([sys.executable, "-c", {leased(1, SEEN)!r}], env=environment)
"""
    visible = {"CUDA_VISIBLE_DEVICES": everything, "XDG_CACHE_HOME": str(tmp_path)}
    # CUDA numbers GPUs differently from NVML unless CUDA_DEVICE_ORDER says PCI_BUS_ID.
    assert run(2, nested, **visible).split() == ["GPU-a,GPU-b", "PCI_BUS_ID", "GPU-c"]
    assert run(4, SEEN, **visible) == everything, "too few are better than none; all are free again"


@pytest.mark.gpu
def test_torch_sees_the_device_of_a_uuid():
    uuid = visible_gpus()[0]
    said = run(1, "import torch; print(torch.cuda.get_device_properties(0).uuid)")
    assert said == uuid.removeprefix("GPU-")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The folder that this user's processes share."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "transformer_core"


def test_a_folder_that_others_may_enter_is_refused(own, tmp_path):
    folder = lease_folder()
    assert folder.is_relative_to(own)
    assert {each.stat().st_mode & 0o777 for each in (own, folder)} == {0o700}
    folder.chmod(0o777)
    with pytest.raises(Refusal, match="only this user may enter"):
        lease_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(Refusal, match="only this user may enter"):
        lease_folder()


def test_a_user_without_a_home_is_told_what_to_set(own, monkeypatch):
    """As in a container that runs with the number of a user that it does not know."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    with pytest.raises(Refusal, match="set XDG_RUNTIME_DIR or HOME"):
        lease_folder()


def test_the_runtime_folder_of_the_session_comes_first(own, tmp_path, monkeypatch):
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert lease_folder().is_relative_to(own)  # others may enter that one
    runtime.chmod(0o700)
    assert lease_folder().is_relative_to(runtime)


def test_a_link_in_place_of_a_lock_is_refused(own, tmp_path):
    lock = lease_folder() / "GPU-a"
    lock.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        lease(["GPU-a"], 1, lock.parent)
    assert not (tmp_path / "victim").exists()


def test_on_a_full_disk_the_error_names_the_file_that_the_job_writes(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as now:
        now.setattr(os, "write", full)
        with exclusive(tmp_path / "job"):
            pass
    assert (tmp_path / "job/.lock").read_text() == ""


def test_after_waiting_for_a_removed_folder_a_job_gets_a_new_one(tmp_path, capsys, caplog):
    """Otherwise the orphan of a killed Snakemake removes files of the next attempt."""
    folder = tmp_path / "job"
    begun, left = threading.Event(), []

    def wait_and_work() -> None:
        begun.set()
        with exclusive(folder):
            left.append(sorted(path.name for path in folder.iterdir()))
            (folder / "order.json").write_text("mine")
            time.sleep(0.3)
            left.append(sorted(path.name for path in folder.iterdir()))

    with workplace(folder):
        (folder / "parts").mkdir()
        (folder / "parts/one").touch()
        (folder / "result.json").touch()
        other = threading.Thread(target=wait_and_work)
        other.start()
        begun.wait()
        time.sleep(0.3)
        assert not left, "it did not wait"
        assert f"{folder} is in use by process {os.getpid()}" in capsys.readouterr().err
        assert not caplog.records, "the log is that of the other job"
    other.join()
    assert left == [[".lock"], [".lock", "order.json"]]
    with pytest.raises(RuntimeError, match="not done"), workplace(folder):
        raise RuntimeError("not done")
    assert (folder / "order.json").exists(), "the next attempt can use the files of a failed one"
    with workplace(folder, lambda: True):
        pass
    assert (folder / "order.json").exists()
    with workplace(folder):
        pass
    assert not folder.exists()


def test_a_folder_that_links_to_a_missing_one_is_refused(tmp_path):
    (tmp_path / "job").symlink_to(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="job"), exclusive(tmp_path / "job"):
        pass


def test_a_folder_that_cannot_be_locked_is_named_with_the_remedy(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = r"job/\.lock cannot be locked \(Function not implemented\).*remedy: mount"
    with pytest.raises(Refusal, match=said), exclusive(tmp_path / "job"):
        pass


def test_many_jobs_use_a_folder_in_turn_and_remove_it(tmp_path):
    folder = tmp_path / "job"
    faults: list[str] = []

    def work(name: str) -> None:
        for turn in range(40):
            with workplace(folder):
                others = [path.name for path in folder.iterdir() if path.name != ".lock"]
                if others:
                    faults.append(f"{name} in turn {turn} found {others}")
                (folder / name).write_text(str(turn))
                if (folder / name).read_text() != str(turn):
                    faults.append(f"{name} lost turn {turn}")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, [f"worker {number}" for number in range(6)]))
    assert not faults
    assert not folder.exists()
