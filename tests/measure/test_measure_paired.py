"""Run specs that take turns: order, budget, resumption, and sides that end early."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import starmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pair_builders import compared, session
from worker_builders import spec

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError
from schemas.results import Pair, PairedRun
from tests.orders import job_command, run_job
from tests.records import provenance
from transformer_core.common.digests import forget_all
from transformer_core.common.records import read_record
from transformer_core.measure import comparison
from transformer_core.measure import sessions as session_module
from transformer_core.measure import turns as module
from transformer_core.measure.comparison import Kept, compare_pairs, enough, leave_sessions, stop
from transformer_core.measure.session_ratio import log_ratios
from transformer_core.measure.sessions import SessionEndedError, Sessions, Side, TurnsOrder
from transformer_core.measure.turns import pairs_of
from transformer_core.run import oom, supervisor
from transformer_core.run.statuses import Outcome
from transformer_core.run.warm_start import WARM_STARTS, offer_warm_starts

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
FAST = Pair("fast", "single")
COMPARING = Comparing(
    warmup_steps=3, window_seconds=0.025, pairs=6, sessions_least=2, sessions_most=2, budget=0.1
)
ONE_SESSION = COMPARING.model_copy(update={"sessions_least": 1, "sessions_most": 1})


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The log of the turns. All sides have the same environment, so one server forks them."""
    with pytest.MonkeyPatch.context() as patch:
        log = tmp_path_factory.mktemp("fake") / "turns.log"
        paths = [str(HERE), str(HERE.parent / "decide"), str(HERE.parents[1])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("FAKE_LOG", str(log))
        patch.setenv(WARM_STARTS, offer_warm_starts())
        yield log


@pytest.fixture
def fake(log, monkeypatch):
    """Sides that only answer; the log of their turns."""
    log.unlink(missing_ok=True)
    monkeypatch.setattr(TurnsOrder, "worker", "fake_side")
    monkeypatch.setattr(comparison, "collect", lambda spec, command, started: provenance())
    return log


def side(folder: Path, name: str, **machine: Any) -> Side:
    found = RunSpec.model_validate({"variant": name, "machine": machine})
    (folder / f"{name}.json").write_text(found.canonical_json())
    return Side(name, found)


def run(folder: Path, variant: str, comparing: Comparing = COMPARING, **machine: Any) -> PairedRun:
    # The reference bounds how long both may take to start.
    sides = side(folder, "single"), side(folder, variant, **machine)
    found = compared(sides, comparing, folder, folder / "pairs" / variant)
    assert list(found) == [variant]
    return found[variant]


def test_a_side_that_stalls_gives_its_status_and_no_number(fake, tmp_path, monkeypatch):
    kills = iter([3, 4])
    monkeypatch.setattr(session_module, "kernel_kills", lambda: next(kills))
    monkeypatch.setattr(oom, "kernel_kills", lambda: next(kills))
    monkeypatch.setattr(session_module, "_LAST_WORDS_SECONDS", 0.1)
    monkeypatch.setenv(WARM_STARTS, "off")  # a fork does not tell its module
    found = run(tmp_path, "stalls", timeout=0.5)
    assert (found.status, found.ended_by, found.sessions) == ("failed", "stalls", [])
    assert (found.stopped, found.traceback) == (None, None)
    assert "did not answer within 0.5 s (machine.timeout)" in found.reason
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "fake_side" in child.cmdline()]


def test_a_larger_budget_builds_on_existing_sessions(fake, tmp_path):
    first = run(tmp_path, "fast", ONE_SESSION)
    leave_sessions(tmp_path / "pairs/fast", ONE_SESSION)
    # Repeating a recorded comparison measures everything again.
    again = run(tmp_path, "fast", ONE_SESSION)
    assert len(again.sessions) == 1
    assert again.sessions != first.sessions
    leave_sessions(tmp_path / "pairs/fast", ONE_SESSION)
    more = run(tmp_path, "fast")
    assert [s.number for s in more.sessions] == [1, 2]
    assert more.sessions[:1] == again.sessions


@pytest.mark.parametrize(
    ("on_gpus", "moves", "second"),
    [(False, False, [2]), (True, False, [2]), (False, True, [1, 2])],
)
def test_after_a_failure_that_may_pass_complete_sessions_are_kept(
    fake, tmp_path, monkeypatch, on_gpus, moves, second
):
    monkeypatch.setattr(session_module, "uses_gpus", lambda spec: on_gpus)
    monkeypatch.setattr(session_module.Sessions, "_keeping", lambda sessions: "all")
    whole, lost = session_module.Sessions.run, Outcome(status="failed", reason="lost", again=True)
    ran: list[int] = []

    def run(sessions: Any, number: int, enough: Any) -> Any:
        ran.append(number)
        if ran == [1, 2]:
            raise SessionEndedError("fast", lost)
        return whole(sessions, number, enough)

    monkeypatch.setattr(session_module.Sessions, "run", run)
    for name in ("single", "fast"):
        side(tmp_path, name)
    files = {"specs": [tmp_path / "single.json", tmp_path / "fast.json"], "data": tmp_path}
    output = tmp_path / "turns/fast/single.json"
    here = module.read_hardware()
    for status in ("failed", "ok", "ok"):
        forget_all()
        assert run_job("turns", **files, comparing=COMPARING, outputs=[output]) == 0
        assert read_record(output, PairedRun).status == status
        there = here.model_copy(update={"cpu": f"not {here.cpu}" if moves else here.cpu})
        monkeypatch.setattr(module, "read_hardware", lambda there=there: there)
    assert ran == [1, 2, *second, 1, 2], "a finished comparison is repeated as a whole"


def test_only_sessions_of_the_same_comparison_are_kept(tmp_path, monkeypatch):
    sides = [side(tmp_path, "single"), side(tmp_path, "fast")]
    kept = Kept(tmp_path, sides, COMPARING)
    kept.add(session(2.0, 1))
    kept.add(session(2.0, 2))
    assert [s.number for s in kept.read()] == [1, 2]
    other = [side(tmp_path, "single"), side(tmp_path, "fast", threads=1)]
    assert list(Kept(tmp_path, other, COMPARING).read()) == []
    longer = COMPARING.model_copy(update={"warmup_steps": 9})
    assert list(Kept(tmp_path, sides, longer).read()) == []
    assert list(Kept(tmp_path, sides, COMPARING, code="newer").read()) == []
    more = COMPARING.model_copy(update={"budget": 9.0, "sessions_most": 7, "precision": 0.2})
    assert len(list(Kept(tmp_path, sides, more).read())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "own_models", lambda specs: ["my_model.py edited"])
        assert list(Kept(tmp_path, sides, COMPARING).read()) == []
    (tmp_path / "session-1.json").write_text('{"key": "cut o')
    assert list(kept.read()) == []
    leave_sessions(tmp_path, COMPARING)
    assert kept.recorded(COMPARING)
    (tmp_path / ".recorded.json").write_bytes(b'{"pairs": \xff')
    assert not kept.recorded(COMPARING)


def spread(error: float) -> tuple[float, ...]:
    """Noise of eight rounds whose trimmed mean has this standard error."""
    scale = error / 0.4008
    return tuple(scale * value for value in (-1, 1, -1, 1, -1, 1, -1, 1))


@pytest.mark.parametrize(
    ("count", "error", "seconds", "expected"),
    [
        (1, 0.0001, 1.0, None),  # never after one session
        (2, 0.0001, 1.0, "precision"),
        (2, 0.01, 1.0, None),
        (2, 0.01, 5.0, "budget"),  # a third one would end after 15 s
        (3, 0.01, 3.0, None),
        (4, 0.01, 0.1, "sessions"),
    ],
)
def test_when_there_are_enough_sessions(count, error, seconds, expected):
    comparing = Comparing(precision=0.01, budget=12.0, sessions_least=2, sessions_most=4)
    done = [session(1.5, n + 1, noise=spread(error), seconds=seconds) for n in range(count)]
    assert stop(done, [FAST], comparing) == expected


def test_sessions_that_agree_by_chance_do_not_stop_a_comparison():
    comparing = Comparing(precision=0.01, budget=100.0, sessions_least=2)
    agreeing = [session(1.5, n, noise=spread(0.02)) for n in (1, 2)]
    apart = [session(ratio, n, noise=spread(0.001)) for n, ratio in ((1, 1.0), (2, 2.0))]
    assert stop(agreeing, [FAST], comparing) is None
    assert stop(apart, [FAST], comparing) == "precision"


def test_a_session_ends_when_precise_or_out_of_time():
    comparing = Comparing(precision=0.01, budget=12.0, pairs=8, sessions_least=2)
    judge = enough([FAST], comparing)
    precise, noisy = session(1.5, noise=spread(0.001)), session(1.5, noise=spread(0.05))
    assert not judge(precise.rounds[:7], 100.0), "fewer than the least"
    assert judge(precise.rounds, 1.0)
    assert not judge(noisy.rounds, 5.9)
    assert judge(noisy.rounds, 6.1)
    judge_three = enough([FAST, Pair("other", "single"), Pair("other", "fast")], comparing)
    assert not judge_three(noisy.rounds, 8.9), "the budget is for two sides"
    assert judge_three(noisy.rounds, 9.1)


def over_two_hosts(name: str) -> Side:
    ddp = spec("ddp", nodes=2, devices_per_node=1)
    return Side(name, ddp.model_copy(update={"variant": name}))


def test_another_host_starts_its_processes_until_the_record_exists(monkeypatch, tmp_path):
    output = tmp_path / "pairs/ddp.json"
    output.parent.mkdir()
    output.write_text("an older one")
    os.utime(output, (2**31, 2**31))  # by the clock of the file server
    started: list[str] = []

    def start(side: Side, *_: object) -> subprocess.Popen[bytes]:
        started.append(side.name)
        if started.count("ddp") == 3:
            # The first host has finished: these processes would wait forever.
            output.write_text("{}")
        # The first host has dropped this side, whose processes wait for it.
        return subprocess.Popen(["sleep", "300"] if side.name == "gone" else ["true"])

    monkeypatch.setattr(module, "start_side", start)
    sides = [side(tmp_path, "single"), over_two_hosts("gone"), over_two_hosts("ddp")]
    module.lend(sides, tmp_path, tmp_path / "sessions", output, "again")
    # One session after the other, and only sides that span hosts.
    assert sorted(started) == ["ddp", "ddp", "ddp", "gone"]


def test_a_side_has_the_same_place_on_all_hosts_even_after_one_has_failed(monkeypatch, tmp_path):
    names = ["ddp", "failing", "one", "two"]
    files = [tmp_path / f"{name}.json" for name in names]
    outputs = [tmp_path / f"pairs/{name}.json" for name in names[1:]]
    for name, file in zip(names, files, strict=True):
        file.write_text(over_two_hosts(name).spec.canonical_json())
    places: dict[str, set[int]] = {name: set() for name in names}

    def start(side: Side, *_: object) -> Any:
        places[side.name].add(side.place)
        if os.environ["NODE_RANK"] == "1" and side.name == "two":
            os.utime(outputs[-1], (2**31, 2**31))  # the first host has written it meanwhile
        return SimpleNamespace(poll=lambda: None, kill=lambda: None, wait=lambda: 0)

    def run(sessions: Any, number: int, *_: object) -> Any:
        ended = "failing" if "failing" in sessions._start(number) else "ddp"
        raise SessionEndedError(ended, Outcome(status="oom", reason="too large"))

    for where in (module, session_module):
        monkeypatch.setattr(where, "start_side", start)
    monkeypatch.setattr(session_module.Sessions, "run", run)
    monkeypatch.setattr(comparison, "collect", lambda *_: provenance())
    monkeypatch.setenv("RENDEZVOUS", "127.0.0.1:29400")
    for host in ("0", "1"):
        monkeypatch.setenv("NODE_RANK", host)
        order = {"specs": files, "data": tmp_path, "outputs": outputs}
        assert run_job("turns", **order, comparing=COMPARING) == 0
    assert places == {name: {place} for place, name in enumerate(names)}


def test_nothing_starts_if_a_side_has_nothing_to_train(monkeypatch, tmp_path):
    monkeypatch.setattr(session_module, "start_side", lambda *_: pytest.fail("nothing may start"))
    reference = side(tmp_path, "single")
    empty = reference.spec.model_copy(update={"variant": "odd", "no_meaning": "no such layer"})
    found = compared([reference, Side("odd", empty)], COMPARING, tmp_path, tmp_path)["odd"]
    assert (found.status, found.reason, found.ended_by) == ("unsupported", "no such layer", "odd")


def test_a_side_that_this_host_cannot_start_ends_the_others(monkeypatch, tmp_path):
    single, fast = side(tmp_path, "single"), side(tmp_path, "fast")
    ended: list[str] = []

    def start(one: Side, *_: object) -> Any:
        if one.name == "fast":
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return SimpleNamespace(kill=lambda: ended.append(one.name))

    monkeypatch.setattr(session_module, "start_side", start)
    found = compared([single, fast], COMPARING, tmp_path, tmp_path)["fast"]
    assert (found.status, found.ended_by, ended) == ("failed", "fast", ["single"])
    assert "Resource temporarily unavailable. Remedy: " in (found.reason or "")


def test_a_further_process_of_the_reference_that_cannot_start_ends_the_reference(
    monkeypatch, tmp_path
):
    tried: list[RunSpec] = []

    def check(spec: RunSpec, worker: str) -> None:
        if spec in tried:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        tried.append(spec)

    monkeypatch.setattr(session_module, "check_start", check)
    sides = [side(tmp_path, name) for name in ("single", "fast", "other", "third")]
    with (
        Sessions.opened(sides, COMPARING, tmp_path, tmp_path, "", print) as sessions,
        pytest.raises(SessionEndedError, match=r"^single: failed"),
    ):
        sessions._start(1)


def test_ranks_do_not_take_turns_where_they_could_not_connect(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "no_loopback", lambda: "No loopback. Remedy: ip link.")
    ranks = spec("ddp", devices_per_node=2)
    sides = [Side(name, ranks.model_copy(update={"variant": name})) for name in ("a", "b")]
    found = compared(sides, COMPARING, tmp_path, tmp_path)["b"]
    assert (found.status, found.ended_by) == ("failed", "a")
    assert found.reason == "No loopback. Remedy: ip link.\nThe same command tries again."


def test_the_same_turns_serve_all_comparisons(fake, tmp_path):
    sides = [side(tmp_path, name) for name in ("single", "fast", "other", "third")]
    # The two processes of the reference take 1.1 times as long as one.
    expected = {
        Pair("fast", "single"): (0.6931 + 0.0953, 2, ["other", "third"]),
        Pair("other", "single"): (0.0953, 2, ["fast", "third"]),
        Pair("other", "fast"): (-0.6931, 1, ["single", "third"]),
        Pair("third", "other"): (0.0, 1, ["single", "fast"]),
    }
    pairs = list(expected)
    found = compare_pairs(sides, pairs, ONE_SESSION, tmp_path, tmp_path / "turns", "the command")
    assert list(found) == pairs
    lines = fake.read_text().splitlines()
    # First the warm-up, which ends with a pilot, then turns of three steps: a step takes 10 ms, a
    # window 25 ms.
    assert lines[:3] == ["single 0 2", "single 0 1", "fast 0 3"]
    # The two processes of the reference have turns between those of the others.
    order = ["single", "fast", "other", "single+2", "third"]
    assert lines[6:] == [f"{name} 1 3" for name in order * 4 + order[::-1] * 2]
    for pair, (ratio, processes, others) in expected.items():
        record = found[pair]
        assert (record.status, record.variant, record.reference) == ("ok", *pair)
        assert (record.ratios[0].processes, record.others) == (processes, others)
        assert set(record.provenance) == {*pair}
        (made,) = record.sessions
        assert [s.name for s in made.sides] == [pair.reference, pair.variant]
        assert {w.side for rnd in made.rounds for w in rnd.windows} == {*pair}
        assert log_ratios(made.rounds, pair) == pytest.approx([ratio] * 6, abs=1e-3)
        for window in made.windows(pair.reference):
            assert len(window.of_processes) == (2 if pair.reference == "single" else 0)
    fast = found[Pair("fast", "single")]
    assert (fast.stopped, fast.provenance["fast"].command) == ("sessions", "the command")
    session_of_fast = fast.sessions[0]
    windows = [window for rnd in session_of_fast.rounds for window in rnd.windows]
    begins = [window.began for window in windows]
    assert begins == sorted(begins)
    assert {window.steps for window in windows} == {3}
    assert session_of_fast.sides[1].warmup_seconds == pytest.approx(0.0153)
    assert session_of_fast.sides[1].peak_memory_bytes == 1000
    probe = session_of_fast.before.probes[0]
    assert probe.device == "cpu"
    assert min(probe.matmul_flops_per_second, probe.copy_bytes_per_second) > 0


def test_a_side_that_ends_affects_only_its_own_comparisons(fake, tmp_path):
    """Even if it is the reference of the turns; the others continue."""
    sides = [side(tmp_path, name) for name in ("dies", "single", "fast", "fails")]
    pairs = [("single", "dies"), ("fast", "dies"), ("fast", "single"), ("fails", "single")]
    found = compare_pairs(
        sides, list(starmap(Pair, pairs)), ONE_SESSION, tmp_path, tmp_path / "turns", "the command"
    )
    assert {pair: (run.status, run.ended_by, len(run.sessions)) for pair, run in found.items()} == {
        ("single", "dies"): ("failed", "dies", 0),
        ("fast", "dies"): ("failed", "dies", 0),
        ("fast", "single"): ("ok", None, 1),
        ("fails", "single"): ("failed", "fails", 0),
    }
    ended = r"ended before .* \(signal SIGKILL\)\. The same command tries again\."
    assert re.fullmatch(ended, found["fast", "dies"].reason)
    assert found["fails", "single"].reason == "ValueError: a mistake"
    assert found["fails", "single"].traceback is not None


def test_a_side_that_the_kernel_killed_for_lack_of_memory_says_so(fake, tmp_path, monkeypatch):
    kills = iter([3, 4])
    monkeypatch.setattr(session_module, "kernel_kills", lambda: next(kills))
    monkeypatch.setattr(oom, "kernel_kills", lambda: next(kills))
    found = run(tmp_path, "dies")
    assert (found.status, found.ended_by) == ("oom", "dies")
    assert "memory ran out" in found.reason


def test_a_comparison_with_an_unknown_side_is_refused():
    assert pairs_of((), ["a", "b", "c"]) == [("b", "a"), ("c", "a")]
    assert pairs_of(["c/b"], ["a", "b", "c"]) == [("c", "b")]
    with pytest.raises(ConfigError, match="VARIANT/REFERENCE of a, b, c"):
        pairs_of(["b/d"], ["a", "b", "c"])


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_job_that_was_ended_resumes(fake, tmp_path, monkeypatch, sent):
    """Ends the job in its second session, and starts it again."""
    sockets = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(sockets))
    monkeypatch.setenv(WARM_STARTS, "off")  # no further server for this folder
    for name in ("single", "fast"):
        side(tmp_path, name)
    output = tmp_path / "turns/fast/single.json"
    slow = COMPARING.model_copy(update={"pairs": 40, "budget": 0.0})
    code = (
        "import signal, sys; from transformer_core.run import job;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a shell's background ignores it
        "from transformer_core.measure.sessions import TurnsOrder;"
        "TurnsOrder.worker = 'fake_side'; sys.argv[0] = 'turns'; sys.exit(job.main())"
    )
    _, _, _, *order = job_command(
        "turns",
        specs=[tmp_path / "single.json", tmp_path / "fast.json"],
        comparing=slow,
        data=tmp_path,
        outputs=[output],
        target="results/turns/single/1",
    )
    command = [sys.executable, "-c", code, *order]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    kept = output.with_suffix("") / "session-1.json"
    end = time.monotonic() + 60
    while not kept.exists():
        assert first.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    first.send_signal(sent)
    _, said = first.communicate(timeout=60)
    assert not output.exists()
    if sent != signal.SIGKILL:
        said = said.splitlines()[-1]
        assert said == (
            f"stopped before it had finished (signal {sent.name}). Remedy: give the same command again."
        )
        assert not list(sockets.glob("turns-*"))
    before = json.loads(kept.read_text())["session"]
    assert subprocess.run(command, check=False).returncode == 0
    found = PairedRun.model_validate_json(output.read_text())
    assert found.sessions[0].model_dump(mode="json") == before
    again = "snakemake --cores all results/turns/single/1"
    assert {side.command for side in found.provenance.values()} == {again}
    assert len(found.sessions) == 2
    left = {path.name for path in output.with_suffix("").glob("[!.]*")}
    assert left == {"session-1.json", "session-2.json"}, "work files are gone"
    assert not list(sockets.glob("turns-*")), "also after a kill"
    shutil.rmtree(sockets)
