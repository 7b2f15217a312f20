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
    """Final status; oom is an answer."""
    reason: str | None
    """Why the status is not ok."""
    peak_bytes: Bytes | None
    """Largest memory of any process, counted the same way as the limit; null if not ok."""
    seconds: Elapsed
    """Time that the trial took."""


class LargestBatchResult(Schema):
    """results/memory/largest_batch/<variant>.json."""

    variant: str
    """Name of the variant."""
    status: Status
    """ok if there is an answer; oom if not even the smallest batch fits."""
    reason: str | None
    """Why there is no answer, or what the limiting factor is."""
    limit_kind: LimitKind
    """Memory counted: everything that a process can write to (RLIMIT_DATA) on a CPU, the
    reservation of torch's CUDA allocator on a GPU."""
    limit_bytes: Bytes
    """Memory available to each process."""
    margin: Amount
    """Fraction of the limit kept free."""
    source_tokens: Many
    """Source sentence length in the tried batches, in tokens: the longest in the corpus."""
    target_tokens: Many
    """Target sentence length in the tried batches, in tokens: the longest in the corpus."""
    largest_pairs: Many | None
    """Sentence pairs in the largest global batch that fits; null without an answer."""
    step_pairs: Many | None
    """Increment in pairs that no longer fits; null without an answer."""
    confirmed: bool
    """Whether the largest batch ran a second time, in fresh processes, and the next larger one
    failed again."""
    trials: list[BatchTrial]
    """All sizes tried, in order."""
    provenance: Provenance
    """Where this record comes from."""

    @property
    def largest_tokens(self) -> int | None:
        """Source and target tokens of the largest global batch."""
        if self.largest_pairs is None:
            return None
        return self.largest_pairs * (self.source_tokens + self.target_tokens)
