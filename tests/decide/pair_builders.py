"""Paired runs with exactly known ratios."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.config.measurement import Comparing
from schemas.results import MachineState, Pair, PairedRun, Probe, Round, Session, Side, TurnWindow
from tests.records import provenance, record, topology
from transformer_core.measure.session_ratio import session_ratios

NOISE = (0.0, 0.01, -0.01, 0.004, -0.004, 0.02, -0.02, 0.001)
"""Offsets of the rounds' ratios from that of their session: none in the middle."""


def window(side: str, rate: float, began: float = 0.0, wait: float = 0.0) -> TurnWindow:
    return TurnWindow(
        side=side,
        began=began,
        seconds=1000 / rate,
        steps=2,
        tokens=1000,
        padded_tokens=1100,
        input_wait_seconds=wait,
    )


def state(speed: float = 1.0, **changes: Any) -> MachineState:
    values: dict[str, Any] = {
        "probes": [
            Probe(
                device="cpu",
                matmul_flops_per_second=speed * 1e11,
                copy_bytes_per_second=speed * 1e10,
            )
        ],
    }
    return record(MachineState, **(values | changes))


def side(name: str, peak: int | None = 1000, world_size: int = 1, planted: float = 0.0) -> Side:
    return Side(
        name=name,
        planted=planted,
        topology=topology(
            world_size, backend="gloo" if world_size > 1 else None, threads_per_rank=1
        ),
        startup_seconds=2.0,
        warmup_seconds=0.5,
        peak_memory_bytes=peak,
    )


def session(
    ratio: float,
    number: int = 1,
    reference: str = "single",
    variant: str = "fast",
    base: float = 100.0,
    noise: Sequence[float] = NOISE,
    **changes: Any,
) -> Session:
    """A session whose rounds scatter by ``noise`` around ``ratio``, while the machine drifts."""
    rounds = []
    for index, extra in enumerate(noise if "rounds" not in changes else ()):
        slow = base * (1 + 0.1 * index)
        pair = [window(reference, slow), window(variant, slow * ratio * (1 + extra))]
        rounds.append(Round(windows=pair[:: -1 if index // 4 % 2 else 1]))
    values: dict[str, Any] = {
        "number": number,
        "started": "2024-05-06T07:08:09+00:00",
        "seconds": 6.0,
        "sides": [side(reference), side(variant)],
        "rounds": rounds,
        "before": state(),
        "after": state(),
        "foreign_cpu_seconds": 0.01,
        "rounds_seconds": 3.0,
    }
    return with_ratios(Session(**(values | changes)))


def with_ratios(made: Session) -> Session:
    """The session with the ratios that its windows show."""
    timed = {window.side for rnd in made.rounds for window in rnd.windows}
    names = [side.name for side in made.sides if side.name in timed]
    return made.model_copy(update={"ratios": session_ratios(made.rounds, names)})


def paired(
    *ratios: float, reference: str = "single", variant: str = "fast", **changes: Any
) -> PairedRun:
    """A paired run with a session for each of ``ratios``."""
    keep = {name: changes.pop(name) for name in list(changes) if name in Session.model_fields}
    values: dict[str, Any] = {
        "reference": reference,
        "variant": variant,
        "status": "ok",
        "sessions": [
            session(ratio, number, reference, variant, **keep)
            for number, ratio in enumerate(ratios, start=1)
        ],
        "stopped": "budget",
        "seconds": 12.0,
        "provenance": {name: provenance() for name in (reference, variant)},
    }
    return record(PairedRun, **(values | changes))


def ended(status: Any, reason: str, variant: str, reference: str = "single") -> PairedRun:
    """A paired run whose variant did not train."""
    end = {"status": status, "reason": reason, "ended_by": variant, "stopped": None}
    return paired(reference=reference, variant=variant, seconds=0.0, **end)


def compared(
    sides: Sequence[Any], comparing: Comparing, data: Path, folder: Path
) -> dict[str, PairedRun]:
    """All sessions of the sides, each compared with the first; by name of the side."""
    # Imported here so that the sides of tests start without it.
    from transformer_core.measure.comparison import compare_pairs

    reference, *variants = (side.name for side in sides)
    pairs = [Pair(variant, reference) for variant in variants]
    found = compare_pairs(sides, pairs, comparing, data, folder, "the command")
    return {pair.variant: run for pair, run in found.items()}
