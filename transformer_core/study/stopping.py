"""Stops a study with its jobs, on Ctrl-C, SIGTERM or the end of a terminal.

Snakemake passes no signal on to its jobs. On SIGTERM it waits until they have finished, which may take
hours; the end of a terminal ends it alone.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

CHANGES_NO_RESULT = True  # it only ends jobs

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask for the end."""
PATIENCE = 10.0  # seconds that a job has to end by itself


def stop_jobs_when_asked(say: Callable[[str], None]) -> None:
    """Makes each of these signals end the jobs of this process, and then Snakemake as on Ctrl-C.

    ``say`` receives a line on how to go on. A signal that this process was started to ignore (nohup)
    is still ignored.
    """
    asked, said = threading.Event(), threading.Event()

    def stop(number: int, _: object) -> None:
        if not asked.is_set():
            asked.set()
            threading.Thread(target=end, args=(signal.Signals(number),), daemon=True).start()
        elif said.is_set():
            said.clear()
            raise KeyboardInterrupt  # which Snakemake handles in all versions

    def end(asking: signal.Signals) -> None:
        # Snakemake may be printing a line: it holds the lock of its output, and ignores exceptions.
        with suppress(OSError):
            say(f"{asking.name}: this study stops with its jobs. The same command continues it.")
        said.set()
        signal.pthread_kill(threading.main_thread().ident or 0, asking)
        end_jobs()

    with suppress(ValueError):  # a thread cannot handle signals
        for number in ASKING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, stop)


def end_jobs() -> None:
    """Asks all processes below this one to end, also those that are still being started, and kills those
    that do not. Never returns.

    Leaves out processes with their own session: servers that jobs are forked from, which end with this
    process, and the forks, whose proxies pass the signal on.
    """
    began, session, asked = time.monotonic(), os.getsid(0), set[psutil.Process]()
    while True:
        for job in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(job.pid) != session:
                    continue
                if time.monotonic() - began > PATIENCE:
                    job.kill()
                elif job not in asked:
                    asked.add(job)
                    job.terminate()
        time.sleep(0.2)
