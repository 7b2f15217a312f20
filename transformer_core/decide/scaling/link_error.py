"""How far the emulated link is from the real one, over runs that took turns on both.

    python -m transformer_core.decide.scaling.link_error --trial ddp 1e8 links/ddp/0.json \
        --trial ddp 1e9 links/ddp/1.json --output links/error.json
"""

import argparse
import sys
from collections.abc import Sequence
from math import exp
from pathlib import Path
from statistics import median

from schemas.config.link import show_bandwidth
from schemas.errors import ConfigError
from schemas.results import LinkError, LinkTrial, PairedRun
from transformer_core.common.endings import program
from transformer_core.common.records import read_record
from transformer_core.common.seals import write_sealed
from transformer_core.measure.turns.session_ratio import log_ratios

REAL, EMULATED = "real_link", "emulated_link"
"""Names of the two sides of a trial."""


def judge(name: str, bandwidth: float, run: PairedRun) -> LinkTrial:
    """One configuration; ``name`` is that of the change, ``bandwidth`` in bits per second."""
    links = [
        side.topology.link
        for session in run.sessions
        for side in session.sides
        if side.name == REAL and side.topology is not None
    ]
    status, reason = run.status, run.reason
    if links and any(link is None or link.kind != "namespaces" for link in links):
        status, reason = "unsupported", "a limited link cannot be made on this machine"
    if status != "ok":
        return LinkTrial(
            name=name,
            bandwidth=bandwidth,
            status=status,
            reason=reason,
            real_seconds=None,
            emulated_seconds=None,
            error=None,
        )
    ratios = [
        value for session in run.sessions for value in log_ratios(session.rounds, REAL, EMULATED)
    ]
    return LinkTrial(
        name=name,
        bandwidth=bandwidth,
        status="ok",
        reason=None,
        real_seconds=_step_seconds(run, REAL),
        emulated_seconds=_step_seconds(run, EMULATED),
        # Of throughputs: a longer step is a smaller one.
        error=exp(-median(ratios)) - 1,
    )


def summarise(trials: Sequence[LinkTrial]) -> LinkError:
    """All trials, with the median and the largest error."""
    errors = [abs(trial.error) for trial in trials if trial.error is not None]
    return LinkError(
        trials=list(trials),
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
    )


def _step_seconds(run: PairedRun, side: str) -> float:
    return median(
        window.seconds / window.steps
        for session in run.sessions
        for rnd in session.rounds
        for window in rnd.windows
        if window.side == side
    )


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.decide.scaling.link_error",
        description="The error of the emulated link against the real one.",
    )
    parser.add_argument(
        "--trial",
        nargs=3,
        action="append",
        required=True,
        metavar=("NAME", "BANDWIDTH", "FILE"),
        help="a change, bits per second, and the record of its runs over both links",
    )
    parser.add_argument("--output", type=Path, required=True, help="error.json")
    options = parser.parse_args(arguments)
    try:
        trials = [
            judge(name, float(bandwidth), read_record(file, PairedRun))
            for name, bandwidth, file in options.trial
        ]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    for found in trials:
        said = "not measured" if found.error is None else f"{found.error:+.1%}"
        print(f"{found.name} at {show_bandwidth(found.bandwidth)}: {said}")
    write_sealed(options.output, summarise(trials).model_dump_json(indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
