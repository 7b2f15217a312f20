"""A request to stop ends all jobs of a study, says how to go on, and can be ignored (nohup)."""

import signal
import subprocess
import sys

import psutil
import pytest

STUDY = """
import signal, subprocess, time
from functools import partial
from transformer_core.study import stopping

stopping.PATIENCE = 0.5
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
start = partial(subprocess.Popen, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
quick = start(["bash", "-c", "sleep 60; true"])
stubborn = start(["bash", "-c", "trap '' TERM; while true; do sleep 1; done"])
apart = start(["sleep", "60"], start_new_session=True)
stopping.stop_jobs_when_asked(lambda text: print(text, flush=True))
time.sleep(1.0)  # until bash ignores the signal
try:
    print(quick.pid, stubborn.pid, apart.pid, flush=True)
    for _ in range(600):
        time.sleep(0.1)  # a signal just before a long sleep would be handled after it
except KeyboardInterrupt:
    print(quick.wait(), stubborn.wait(), apart.poll())
"""


def started(*before: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A process that stands for Snakemake, and its three jobs."""
    study = subprocess.Popen(
        [*before, sys.executable, "-c", STUDY], stdout=subprocess.PIPE, text=True
    )
    return study, [psutil.Process(int(pid)) for pid in study.stdout.readline().split()]


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_ends_all_jobs(asked):
    study, (*_, apart) = started("env", "--default-signal=HUP")  # tests under nohup ignore it
    study.send_signal(asked)
    said = study.communicate()[0].splitlines()
    apart.kill()
    assert said[0].startswith(f"{asked.name}: ")
    assert "same command continues" in said[0]
    # A server, which has its own session, is left to end with Snakemake.
    assert said[1] == f"{-signal.SIGTERM} {-signal.SIGKILL} None"


def test_an_ignored_signal_stays_ignored():
    study, jobs = started("nohup")
    study.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        study.wait(1.0)
    for one in (*jobs, study):
        one.kill()
    study.communicate()


PRINTING = """
import os, signal, threading, time
from transformer_core.study import stopping

lock = threading.Lock()

def say(text):
    with lock:
        print(text, flush=True)
    raise BrokenPipeError

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
stopping.stop_jobs_when_asked(say)
with lock:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
    except KeyboardInterrupt:
        pass
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
"""


def test_a_request_to_stop_waits_until_a_line_is_printed():
    """While Snakemake prints, it holds a lock and ignores exceptions."""
    found = subprocess.run(
        [sys.executable, "-c", PRINTING], capture_output=True, text=True, timeout=30
    )
    said, ended = found.stdout.splitlines()
    assert said.startswith("SIGINT: ")
    assert ended == "stopped"
