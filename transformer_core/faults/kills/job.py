"""Kill a small study at many moments, and see whether the same command ends in the same results:

    python -m transformer_core.faults.kills.job --moments 100 --output kills.json

Snakemake is killed by SIGKILL after a random time, alone or with what it started, and the same
command is given again, until the study is complete; then the next one begins. What does not depend
on the clock (pairs, tokenizer, shards, weights, losses, translations) must be that of a study which
nobody disturbed, to the last bit.

Every kill is kept in ``--folder``: where this is stopped itself, the same command goes on.
"""

import argparse
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from schemas.results.faults import FaultRecord, Verdict
from transformer_core.common.endings import program
from transformer_core.common.seals import write_sealed
from transformer_core.faults.kills.command import WAYS, at_work, end_all, go, wait_until_quiet
from transformer_core.faults.kills.kept import Ended, Kept, Kill
from transformer_core.faults.kills.what_stays import what_must_be_the_same
from transformer_core.faults.tally import Tally

TARGETS = (
    "results/runs/single/metrics.json",
    "results/runs/ddp/metrics.json",
    "results/equivalence/ddp.json",
)
_LONGEST = 1_800.0
"""Seconds after which a study hangs."""
_MOST = 12
"""Kills of one study. After so many it may end, and another begins: so they lie all over it."""


def run(moments: int, seed: int, kept: Kept, targets: Sequence[str], longest: float) -> FaultRecord:
    """The verdicts on ``moments`` kills, each at most ``longest`` seconds after a start."""
    end_all(kept.study)
    try:
        right = kept.right() or _undisturbed(kept, targets)
        while len(kept.kills()) < moments or kept.open():
            _one_study(kept, targets, seed, moments, longest, right)
    finally:
        end_all(kept.study)
    return _tallied(kept, seed)


def _tallied(kept: Kept, seed: int) -> FaultRecord:
    tally = Tally("kills", seed)
    kills = {kill.number: kill for kill in kept.kills()}
    tally.started = time.monotonic() - sum(kill.seconds for kill in kills.values())
    for study in kept.ended():
        for number in study.kills:
            tally.add(f"during {kills[number].during}", number, study.verdict, study.said)
    return tally.record()


def _undisturbed(kept: Kept, targets: Sequence[str]) -> dict[str, str]:
    folder = kept.folder / "right"
    code, said = go(folder, targets, _LONGEST)
    if code:
        raise OSError(f"the study does not end well without a kill either:\n{said}")
    right = what_must_be_the_same(folder / "results")
    kept.keep_right(right)
    shutil.rmtree(folder)
    return right


def _one_study(
    kept: Kept,
    targets: Sequence[str],
    seed: int,
    moments: int,
    longest: float,
    right: dict[str, str],
) -> None:
    """Kill a study, or go on with one, until it has ended."""
    code: int | None = None
    said = ""
    while code is None and len(kept.open()) < _MOST and (number := len(kept.kills())) < moments:
        chance = random.Random(f"{seed}/{number}")
        way, seconds = WAYS[number % len(WAYS)], chance.uniform(0.5, longest)
        code, said = go(kept.study, targets, seconds, way)
        if code is None:
            kept.keep_kill(Kill(number=number, way=way, seconds=seconds, during=at_work(said)))
            print(f"kill {number}, of {way}, after {seconds:.1f} s, {at_work(said)}", flush=True)
    kills = [kill.number for kill in kept.open()]
    if code is None:
        code, said = go(kept.study, targets, _LONGEST)
    wait_until_quiet(kept.study)
    verdict, said = _judged(code, said, what_must_be_the_same(kept.study / "results"), right)
    if not kills:  # it was done before the first moment came
        shutil.rmtree(kept.study)
        return
    kept.keep_ended(Ended(kills=kills, verdict=verdict, said=said))
    print(f"after {len(kills)} kills: {verdict} {said}", flush=True)


def _judged(
    code: int | None, said: str, found: dict[str, str], right: dict[str, str]
) -> tuple[Verdict, str]:
    """How a study ended."""
    if code is None:
        return "hung", said[-1_000:]
    if code:
        return "unclear", said[-2_000:]
    other = [name for name in right if found.get(name) != right[name]]
    if other:
        return "silent", f"others than without a kill: {', '.join(other)}"
    return "same", ""


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.faults.kills.job",
        description="Kill a small study at many moments, and compare what it ends in.",
    )
    parser.add_argument("--moments", type=int, default=100, help="kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of them (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="longest time to a kill (default: %(default)s)"
    )
    parser.add_argument("--targets", nargs="+", default=TARGETS, help="what the study makes")
    parser.add_argument("--folder", type=Path, required=True, help="where every kill is kept")
    parser.add_argument("--output", type=Path, required=True, help="results/faults/kills_N.json")
    options = parser.parse_args(arguments)
    kept = Kept(options.folder, options.targets, options.seed)
    record = run(options.moments, options.seed, kept, options.targets, options.seconds)
    write_sealed(options.output, record.model_dump_json(indent=1) + "\n")
    for count in record.counts:
        print(count.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
