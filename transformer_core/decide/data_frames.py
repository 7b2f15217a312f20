"""Results as data frames for plots, one row per observation."""

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path

import pandas as pd

from schemas.results import LengthHistogram, PairedRun, RankMemory, VariantResult
from transformer_core.common.tables import read_table
from transformer_core.measure.session_ratio import log_ratios


def rounds_frame(run: PairedRun) -> pd.DataFrame:
    """A row per round of a comparison, numbered consecutively with a gap between sessions.

    ``reference`` is the throughput of the reference's window, ``ratio`` that of the variant's over
    it; both divided by their medians.
    """
    rows = []
    number = 0
    for session in run.sessions:
        logs = log_ratios(session.rounds, run.pair)
        for rnd, ratio in zip(session.rounds, logs, strict=True):
            number += 1
            window = next(window for window in rnd.windows if window.side == run.reference)
            rows.append((session.number, number, window.tokens / window.seconds, exp(ratio)))
        number += 1
    frame = pd.DataFrame(rows, columns=["session", "round", "reference", "ratio"])
    for column in ("reference", "ratio"):
        frame[column] /= frame[column].median()
    return frame


def memory_frame(results: Sequence[VariantResult]) -> pd.DataFrame:
    """A row per ok variant and rank: the largest peak over the repeats, in bytes.

    A rank that drives several devices (DataParallel) has one row per device, by device number.
    """
    rows = [
        (result.variant, number[memory.rank, memory.device], memory.peak_bytes)
        for result in results
        if result.status == "ok"
        for repeat in result.repeats
        for number in [_devices(repeat.memory)]
        for memory in repeat.memory
    ]
    frame = pd.DataFrame(rows, columns=["variant", "rank", "peak_bytes"])
    frame = frame.dropna(subset=["peak_bytes"])
    return frame.groupby(["variant", "rank"], sort=False)["peak_bytes"].max().reset_index()


def _devices(memory: Sequence[RankMemory]) -> dict[tuple[int, str], int]:
    """Number of each device of each rank; the rank's number if every rank has one device."""
    return {device: n for n, device in enumerate(sorted({(m.rank, m.device) for m in memory}))}


def training_loss_frame(steps_files: Mapping[str, Path]) -> pd.DataFrame:
    """A row per variant and step with a recorded loss, from the steps.parquet of one repeat."""
    frames = [pd.DataFrame({"variant": [], "step": [], "loss": []})]
    for variant, path in steps_files.items():
        steps = read_table(path, columns=["step", "loss"]).to_pandas()
        frames.append(steps.dropna(subset=["loss"]).assign(variant=variant))
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    return pd.concat(filled, ignore_index=True)[["variant", "step", "loss"]]


def validation_frame(results: Sequence[VariantResult]) -> pd.DataFrame:
    """A row per finite validation loss of the first repeat of every ok variant."""
    return pd.DataFrame(
        [
            (result.variant, validation.step, validation.loss)
            for result in results
            if result.status == "ok"
            for validation in result.repeats[0].validations
            if validation.loss is not None
        ],
        columns=["variant", "step", "loss"],
    )


def lengths_frame(
    lengths: LengthHistogram, source: str | None = None, target: str = ""
) -> pd.DataFrame:
    """A row per side and length, with the fraction of the side's sentences of that length; for
    texts if there is no ``source`` language."""
    rows = []
    sides = [(f"source ({source})", lengths.source), (f"target ({target})", lengths.target)]
    if source is None:
        sides = [(f"texts ({target})", lengths.target)]
    for side, histogram in sides:
        total = sum(histogram.values())
        rows += [(side, length, count / total) for length, count in sorted(histogram.items())]
    return pd.DataFrame(rows, columns=["side", "length", "share"])
