"""Combines the repeats of a variant into one record."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError, ConfigProblem
from schemas.results import Repeat, ShardManifest, VariantResult
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.records import read_record
from transformer_core.decide.intervals import median_interval


def combine(variant: str, repeats: Sequence[Repeat], train: ShardManifest) -> VariantResult:
    """One record of all ``repeats``, ordered by number.

    Throughputs and the time per epoch are null unless every repeat is ok. Everything else is null
    only if no repeat measured it.
    """
    repeats = sorted(repeats, key=lambda repeat: repeat.repeat)
    ended = next((repeat for repeat in repeats if repeat.status != "ok"), None)
    tokens, pairs = (
        median_interval(rates(repeats, count)) if ended is None else None
        for count in ("tokens", "pairs")
    )
    windows = [window for repeat in repeats for window in repeat.windows]
    seconds = sum(window.seconds for window in windows)
    waited = sum(window.input_wait_seconds for window in windows)
    padded = sum(window.padded_tokens for window in windows)
    # Each side of a pair has one additional end token.
    of_epoch = train.source_tokens + train.target_tokens + (0 if train.texts else 2 * train.pairs)
    validations = repeats[0].validations
    return VariantResult(
        variant=variant,
        status=ended.status if ended else "ok",
        reason=ended.reason if ended else None,
        repeats=list(repeats),
        tokens_per_second=tokens,
        pairs_per_second=pairs,
        padding_share=1 - sum(w.tokens for w in windows) / padded if padded else None,
        input_wait_share=waited / seconds if seconds else None,
        validation_loss=validations[-1].loss if validations else None,
        peak_memory_bytes=peak_memory(repeats),
        epoch_seconds=of_epoch / tokens.median if tokens else None,
    )


def peak_memory(repeats: Sequence[Repeat]) -> int | None:
    """Largest peak of any rank of any repeat, in bytes; null if none was measured."""
    peaks = [memory.peak_bytes for repeat in repeats for memory in repeat.memory]
    return max((peak for peak in peaks if peak is not None), default=None)


def repeats_of(spec_file: Path, repeat_files: Sequence[Path]) -> list[Repeat]:
    """The repeats of a run spec; ConfigError if one is of another."""
    digest = read_record(spec_file, RunSpec).digest()
    repeats = [read_record(file, Repeat) for file in repeat_files]
    problems = [
        ConfigProblem(
            str(file),
            "provenance.spec_sha256",
            repeat.provenance.spec_sha256,
            f"is not the hash of {spec_file} ({digest}): the run used another run spec",
            f"run it again: snakemake --cores all --force {file}",
        )
        for file, repeat in zip(repeat_files, repeats, strict=True)
        if repeat.provenance.spec_sha256 != digest
    ]
    if problems:
        raise ConfigError(problems)
    return repeats


class CombineJob(Job):
    """Combines the repeats of a variant: medians with 95 % intervals over the timed windows, peak
    memory, time per epoch."""

    kind = "combine"

    variant: str
    spec: Path  # its run spec
    repeats: list[Path] = Field(min_length=1)  # metrics.json of every repeat
    manifest: Path  # manifest.json of the training shards
    output: Path

    def run(self, log_file: Path | None) -> None:
        repeats = repeats_of(self.spec, self.repeats)
        train = read_record(self.manifest, ShardManifest)
        result = combine(self.variant, repeats, train)
        write_result(self.output, result.model_dump_json(indent=1) + "\n")


def rates(repeats: Iterable[Repeat], count: str) -> list[list[float]]:
    """Non-padding tokens or sentence pairs per second of every timed window, by repeat."""
    return [
        [getattr(window, count) / window.seconds for window in repeat.windows] for repeat in repeats
    ]
