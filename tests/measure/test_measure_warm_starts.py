"""Programs in forks of a process that has imported torch behave as in a new process."""

import ctypes
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from worker_builders import NAME, gone, write_worker

from schemas.config.parallel import HOST_VARIABLE, LINK_VARIABLE
from transformer_core.run import warm_start as places
from transformer_core.run.warm_start import IMPORTS, JOBS, THREADS, kind_of

pytestmark = pytest.mark.slow

GPUS = ("device_count", "is_available", "init", "current_device", "get_device_properties")
"""Functions of torch.cuda after which it cannot be used in a fork."""

WORKER = f"""
import importlib, json, os, random, signal, sys, time
from unittest import mock
import numpy, torch
with mock.patch.multiple(torch.cuda, **dict.fromkeys({GPUS!r}, mock.DEFAULT)) as gpus:
    for name in {(*IMPORTS["workers"], *IMPORTS["sides"])!r}:
        importlib.import_module(name)

def status():
    lines = open("/proc/self/status").read().splitlines()
    return {{line.split(":")[0]: line.split(":")[1].strip() for line in lines}}

def train():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        x, y = torch.randn(512, 256), torch.randint(9, (512,))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item().hex())
    return losses

def main():
    file, what = sys.argv[1:]
    if what == "train":
        unseeded = [random.random(), float(numpy.random.rand()), float(torch.rand(1))]
        told = {{
            "losses": train(), "unseeded": unseeded, "options": sys.argv[1:],
            "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
            "parallel": torch.__config__.parallel_info(), "folder": os.getcwd(),
            "environment": dict(os.environ), "path": sys.path,
            "blocked": status()["SigBlk"], "caught": status()["SigCgt"], "nice": os.nice(0),
            "cores": sorted(os.sched_getaffinity(0)), "cuda": torch.cuda.is_initialized(),
            "gpus": sum(each.call_count for each in gpus.values()),
            "files": len(os.listdir("/proc/self/fd")), "buffered": sys.stdout.line_buffering,
        }}
    else:
        told = {{}}
    told |= {{"pid": os.getpid(), "parent": os.getppid(), "rank": os.environ.get("RANK")}}
    with open(f"{{file}}-{{told['rank'] or 0}}.part", "w") as part:
        json.dump(told, part)
    os.rename(part.name, part.name.removesuffix(".part"))
    print("told", end="")
    if what == "wait":
        time.sleep(100)
    if what == "raise":
        raise ValueError("a mistake")
    if what == "end":
        sys.exit(7)
"""


class Starts:
    """Starts the worker, by default warm; ``owner`` offers the warm starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        offer = f"{self.owner.pid}:{places.this_place()}"
        more = {"OMP_NUM_THREADS": "1", places.WARM_STARTS: offer}
        self.environment = write_worker(folder, WORKER) | more

    def start(
        self, name: str, what: str, *more: str, warm: bool = True, deaf: bool = False
    ) -> subprocess.Popen[bytes]:
        """With ``deaf`` it ignores signals, as under nohup or in a shell's background."""
        module = "transformer_core.run.quick_start"
        command = [sys.executable, "-m", module, *more, NAME]
        return subprocess.Popen(
            [*command, str(self.folder / name), what],
            env=self.environment | ({} if warm else {places.WARM_STARTS: "off"}),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Independent of how a shell has started these tests.
            preexec_fn=partial(hear, signal.SIG_IGN if deaf else signal.SIG_DFL),
        )

    def told(self, name: str, rank: int = 0) -> dict[str, Any]:
        """Waits for a worker's report."""
        file = self.folder / f"{name}-{rank}"
        end = time.monotonic() + 120
        while not file.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        told: dict[str, Any] = json.loads(file.read_text())
        return told


def hear(action: signal.Handlers) -> None:
    """Sets this process's action on signals that ask it to end."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, action)


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    made = Starts(tmp_path_factory.mktemp("w"))
    yield made
    made.owner.kill()
    made.owner.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_ends_with_the_process_that_started_it_unless_the_signal_is_ignored(
    starts, number
):
    child = starts.start(f"deaf-{number}", "wait", deaf=True)
    pid = starts.told(f"deaf-{number}")["pid"]
    for ignored in (signal.SIGHUP, signal.SIGINT):
        child.send_signal(ignored)
    time.sleep(0.5)
    assert child.poll() is None
    assert psutil.pid_exists(pid)
    child.send_signal(number)
    assert child.wait(60) == -number
    assert gone(pid)


def test_a_fork_is_like_a_new_process(starts):
    names = ("new", "warm", "again")
    for name in names:
        child = starts.start(name, "train", warm=name != "new")
        assert (child.communicate(timeout=120), child.returncode) == ((b"told", b""), 0)
    new, warm, again = map(starts.told, names)
    assert warm["parent"] == again["parent"] != new["parent"] == os.getpid()
    assert len({new["pid"], warm["pid"], again["pid"]}) == 3
    for name in (
        *("losses", "threads", "parallel", "folder", "path", "blocked", "caught"),
        *("nice", "cores", "cuda", "files", "buffered"),
    ):
        assert warm[name] == again[name] == new[name], name
    for told in (warm, again):
        assert told["environment"].keys() == new["environment"].keys()
    assert new["gpus"] == 0, "an import has queried GPUs"
    # The worker has not seeded these.
    for values in zip(new["unseeded"], warm["unseeded"], again["unseeded"], strict=True):
        assert len(set(values)) == 3


def test_the_proxy_ends_like_the_program(starts):
    child = starts.start("end", "end")
    assert (child.communicate(timeout=120), child.returncode) == ((b"told", b""), 7)
    child = starts.start("raise", "raise")
    output, error = child.communicate(timeout=120)
    assert (child.returncode, output) == (1, b"told")
    assert b"ValueError: a mistake" in error


def test_forks_of_a_fork(starts):
    child = starts.start("ranks", "", "--fork=2")
    assert child.wait(120) == 0
    first, second = starts.told("ranks", 0), starts.told("ranks", 1)
    assert [first["rank"], second["rank"]] == ["0", "1"]
    assert first["parent"] == second["parent"] != child.pid


def never() -> NoReturn:
    raise AssertionError("a server was there")


def fork_of(starts: Starts, name: str, what: str) -> places.Fork:
    program = places.Program(NAME, [str(starts.folder / name), what], None)
    fork = places.start_fork(program, starts.environment, never)
    assert fork is not None
    return fork


def test_a_fork_is_awaited_without_a_proxy(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.WARM_STARTS, starts.environment[places.WARM_STARTS])
    monkeypatch.chdir(starts.folder)  # the folder of the existing server
    forks = {"fork-end": "end", "fork-asked": "wait", "fork-killed": "wait"}
    ended, asked, killed = (fork_of(starts, name, what) for name, what in forks.items())
    assert ended.wait(120) == ended.poll() == 7
    pids = [starts.told(name)["pid"] for name in forks]
    parents = {psutil.Process(pid).ppid() for pid in pids[1:]}
    assert asked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        asked.wait(0.1)
    asked.send_signal(signal.SIGTERM)
    assert asked.wait(60) == -signal.SIGTERM
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert all(map(gone, pids))
    assert len(parents) == 1
    assert parents != {os.getpid()}


def test_a_program_starts_normally_if_the_server_does_not_start_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    fork = places.Fork(ours, lambda: subprocess.Popen(command))
    assert fork.poll() is None
    theirs.close()
    assert fork.wait(60) == fork.poll() == 3


@pytest.mark.parametrize("begun", [True, False])
def test_a_killed_fork_is_over_when_the_server_says_so_or_ends(begun: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork = places.Fork(ours, never)
    if begun:
        theirs.send(b"+" + struct.pack("!i", 7))
        assert fork.poll() is None
    fork.kill()
    assert theirs.recv(1) == b"", "the server must end it"
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.05)
    if begun:
        theirs.send(struct.pack("!i", -signal.SIGKILL))
    else:
        theirs.close()
    assert fork.wait(60) == -signal.SIGKILL


def test_forks_end_with_their_server() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork = places.Fork(ours, never)
    theirs.send(b"+" + struct.pack("!i", 7))
    assert (fork.poll(), fork.pid) == (None, 7)
    theirs.close()
    assert fork.poll() == -signal.SIGKILL


def test_two_threads_hear_the_same_exit_code(monkeypatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork = places.Fork(ours, never)
    theirs.send(b"+" + struct.pack("!i", 7))
    assert fork.poll() is None
    heard, go_on, hear = threading.Event(), threading.Event(), fork._hear

    def slowly(told: bytes) -> None:
        heard.set()
        go_on.wait(60)
        hear(told)

    monkeypatch.setattr(fork, "_hear", slowly)
    theirs.send(struct.pack("!i", 3))
    theirs.close()
    codes = []
    first = threading.Thread(target=lambda: codes.append(fork.wait(60)))
    first.start()
    assert heard.wait(60)
    monkeypatch.setattr(fork, "_hear", hear)
    early = fork.poll()
    go_on.set()
    first.join(60)
    assert (early, codes, fork.poll()) == (None, [3], 3)


def test_a_proxy_does_not_run_the_program_again_if_the_server_is_killed(monkeypatch) -> None:
    """A signal that the server has not read makes the end of its connection an error."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(bytes([signal.SIGTERM]))
    theirs.close()
    ends: list[int] = []
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "kill", lambda pid, number: ends.append(number))
    monkeypatch.setattr(os, "_exit", ends.append)
    places._stand_for(ours)
    assert ends == [signal.SIGKILL, -signal.SIGKILL]


def test_a_fork_without_its_own_process_group_ends_with_its_client(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    late = tmp_path / "late"
    fork = subprocess.Popen(["sh", "-c", f"sleep 5; touch {late}"])
    server = places.Server(socket.socket(socket.AF_UNIX), os.getpid())
    server._watch(theirs, fork.pid)
    server._stop()
    ours.close()
    assert server.serve() is None
    assert gone(fork.pid)
    assert not late.exists()


@pytest.mark.parametrize(("said", "used"), [(3, False), (0, True), (100, True)])
def test_a_server_whose_libraries_have_used_the_driver_of_gpus_does_not_fork(
    said, used, tmp_path, monkeypatch
) -> None:
    """As torch.cuda.is_available() does. CUDA works in no fork of such a process."""
    source = tmp_path / "driver.c"
    source.write_text(f"int cuDeviceGetCount(int *count) {{ return {said}; }}")
    driver = tmp_path / "libcuda.so.1"
    monkeypatch.setattr(places, "_DRIVER", str(driver))
    assert not places._used_gpu()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, source], check=True)
    assert not places._used_gpu(), "nothing has loaded it"
    loaded = ctypes.CDLL(str(driver))
    assert loaded.cuDeviceGetCount(None) == said
    assert places._used_gpu() == used


def test_a_server_that_cannot_fork_refuses_and_keeps_its_forks(monkeypatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("too many processes")

    listening, client = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    listening.bind("")
    listening.listen()
    client.connect(listening.getsockname())
    request = {"module": "m", "options": [], "processes": None, "environment": {}}
    socket.send_fds(client, [json.dumps(request).encode()], [0, 1, 2])
    monkeypatch.setattr(os, "fork", refuse)
    with listening, client:
        assert places.Server(listening, os.getpid())._accept() is None
        assert client.recv(5) == b""


@contextmanager
def few_files(free: int) -> Iterator[None]:
    """This process may open only ``free`` more files within the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        opened: list[Any] = []
        with suppress(OSError):
            while True:
                opened.append(stack.enter_context(Path(os.devnull).open()))
        for file in opened[:free]:
            file.close()
        yield


def test_a_server_that_may_open_no_more_files_stops_and_keeps_its_forks() -> None:
    listening, client = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    listening.bind("")
    listening.listen()
    client.connect(listening.getsockname())
    server = places.Server(listening, os.getpid())
    server.forks.add(1)
    with client:
        with few_files(free=0):
            assert server._accept() is None
        assert not server.open
        assert server.forks == {1}
        with pytest.raises(ConnectionResetError):  # it starts its program by itself
            client.recv(5)


def test_a_request_without_all_of_its_streams_is_refused() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {"module": "m", "options": [], "processes": None, "environment": {}}
    with ours, theirs:
        socket.send_fds(theirs, [json.dumps(request).encode()], [0, 1, 2])
        with few_files(free=2):
            with pytest.raises(ValueError, match="2 of 3 streams"):
                places.read_request(ours)
            with Path(os.devnull).open(), Path(os.devnull).open():
                pass  # they are closed again


def test_a_server_whose_owner_has_ended_waits_for_its_forks_without_a_core(monkeypatch) -> None:
    monkeypatch.setattr(places, "IDLE_SECONDS", 0.1)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("")
    listening.listen()
    owner = subprocess.Popen(["sleep", "100"])
    server = places.Server(listening, owner.pid)
    owner.kill()
    owner.wait()
    server.forks.add(1)
    found: list[int] = []

    def select(timeout: float) -> Any:
        ready = real(timeout)
        found.append(len(ready))
        if len(found) == 2:
            server.forks.clear()
        return ready

    real = server.selector.select
    monkeypatch.setattr(server.selector, "select", select)
    assert server.serve() is None
    assert found == [1, 0]


def test_a_server_takes_no_event_of_one_connection_for_another_with_its_number(monkeypatch) -> None:
    """A fork ends, another begins and gets the number of its connection, and then its client leaves."""
    listening, client = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    listening.bind("")
    listening.listen()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    old, new = (subprocess.Popen(["sleep", "100"]) for _ in range(2))
    server = places.Server(listening, os.getpid())
    server._watch(theirs, old.pid)
    monkeypatch.setattr(os, "fork", lambda: new.pid)
    old.kill()
    while psutil.Process(old.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    client.connect(listening.getsockname())
    request = {"module": "m", "options": [], "processes": None, "environment": {}}
    socket.send_fds(client, [json.dumps(request).encode()], [0, 1, 2])
    ours.close()
    order = ["tell", "_accept", "hear"]
    batch = sorted(server.selector.select(0), key=lambda each: order.index(each[0].data.__name__))
    assert [entry.data.__name__ for entry, _ in batch] == order

    def select(timeout: float) -> Any:
        if batch:
            given = [*batch]
            batch.clear()
            return given
        new.kill()
        server._stop()
        return real(timeout)

    real = server.selector.select
    monkeypatch.setattr(server.selector, "select", select)
    with client:
        assert server.serve() is None
        assert struct.unpack("!i", client.recv(5)[1:]) == (new.pid,)
    assert gone(new.pid)


@pytest.mark.parametrize("offer", ["off", "1:another-place", "x", ""])
def test_without_an_offer_for_this_place_there_is_no_warm_start(monkeypatch, offer):
    monkeypatch.setenv(places.WARM_STARTS, offer)
    assert places.server_owner(os.environ) is None


def test_processes_with_different_settings_have_different_servers(monkeypatch):
    key = places.server_key("workers", os.environ)
    monkeypatch.setenv("RANK", "3")
    for variable in ("NODE_RANK", "RENDEZVOUS", HOST_VARIABLE, LINK_VARIABLE):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")
    assert places.server_key("workers", os.environ) == key
    keys = {key}
    for name in ("LD_PRELOAD", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
        keys.add(places.server_key("workers", os.environ))
    assert len(keys) == 4
    assert places.server_key("jobs", os.environ) not in keys
    assert places.this_place() == places.this_place()
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert places.server_owner(os.environ) is None


def test_only_sides_have_one_server_for_all_folders(monkeypatch, tmp_path):
    """They go to their own folders themselves."""
    before = {kind: places.server_key(kind, os.environ) for kind in IMPORTS}
    monkeypatch.chdir(tmp_path)
    same = {kind for kind in IMPORTS if places.server_key(kind, os.environ) == before[kind]}
    assert same == {"sides"}


def test_jobs_with_any_number_of_threads_have_one_server(monkeypatch):
    keys = set()
    for threads in "12":
        for name in THREADS:
            monkeypatch.setenv(name, threads)
        keys.add(places.server_key("jobs", os.environ))
        assert {places.environment_of("jobs", os.environ)[name] for name in THREADS} == {"1"}
        assert {places.environment_of("workers", os.environ)[name] for name in THREADS} == {threads}
    assert len(keys) == 1


def test_the_server_for_jobs_imports_no_torch_and_serves_all_rules():
    program = f"""
import importlib, sys
for name in {(*JOBS, "transformer_core.measure.self_test")!r}:
    importlib.import_module(name)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)
    rules = "".join(file.read_text() for file in Path("workflow/rules").glob("*.smk"))
    started = set(re.findall(r'quick_start[" \n]+(transformer_core[\w.]+)', rules))
    assert started
    started.add("transformer_core.run.job")  # by QUICK_JOB
    assert {kind_of(module) for module in started} == {"jobs"}


def test_requests_of_other_users_are_refused(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(b"{}")
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(PermissionError):
            places.read_request(ours)
