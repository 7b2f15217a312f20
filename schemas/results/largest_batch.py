"""The largest batch that fits: results/memory/largest_batch/."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Amount, Bytes, Elapsed, Many, Status
from schemas.results.runs import Provenance

Purpose = Literal["search", "confirmation", "one_step_more"]
LimitKind = Literal["data_segment", "torch_allocator"]


class BatchTrial(Schema):
    """One size that was tried."""

    pairs: Many
    """Sentence pairs in the global batch."""
    purpose: Purpose
    """Why it was tried."""
    status: Status
    """How it ended; oom is an answer."""
    reason: str | None
    """Why it is not ok."""
    peak_bytes: Bytes | None
    """Largest memory of any process, counted as the limit counts; null if it is not ok."""
    seconds: Elapsed
    """Time that the trial took."""


class LargestBatchResult(Schema):
    """results/memory/largest_batch/<variant>.json."""

    variant: str
    """Name of the variant."""
    status: Status
    """ok if there is an answer; oom if not even the smallest batch fits."""
    reason: str | None
    """Why there is no answer, or what limits it."""
    limit_kind: LimitKind
    """What counts: everything that a process can write to (RLIMIT_DATA) on a CPU, what torch's
    CUDA allocator reserves on a GPU."""
    limit_bytes: Bytes
    """Memory that each process may have."""
    margin: Amount
    """Share of the limit that was kept free."""
    source_tokens: Many
    """Tokens of a source sentence of the tried batches: the longest of the corpus."""
    target_tokens: Many
    """Tokens of a target sentence of the tried batches: the longest of the corpus."""
    largest_pairs: Many | None
    """Sentence pairs of the largest global batch that fits; null without an answer."""
    step_pairs: Many | None
    """So many pairs more do not fit; null without an answer."""
    confirmed: bool
    """Whether the largest batch ran a second time, in fresh processes, and the one a step larger
    failed again."""
    trials: list[BatchTrial]
    """Every size that was tried, in order."""
    provenance: Provenance
    """Where this comes from."""

    @property
    def largest_tokens(self) -> int | None:
        """Source and target tokens of the largest global batch."""
        if self.largest_pairs is None:
            return None
        return self.largest_pairs * (self.source_tokens + self.target_tokens)
