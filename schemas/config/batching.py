"""How pairs are grouped into global batches and laid out in rows."""

from typing import Annotated, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema, Tokens


class PaddedRows(Schema):
    """Each pair in a row of its own, padded to the longest of its micro-batch."""

    kind: Literal["padded"] = "padded"
    width_multiple: Annotated[int, Unit("tokens")] = Field(default=1, ge=1, le=65_536)
    """Micro-batch widths are rounded up to a multiple of this, in tokens. Fewer distinct shapes
    mean that kernels built for one shape are built once, at the cost of padding."""
    # Omitted if it is the default, so that older run specs keep their hashes.
    row_multiple: Annotated[int, Unit("rows")] = Field(
        default=1, ge=1, le=65_536, exclude_if=lambda rows: rows == 1
    )
    """Rows of a micro-batch are rounded up to a multiple of this; rows that are added have no
    label. Together with width_multiple this bounds the number of shapes."""


class PackedRows(Schema):
    """Several pairs per row, which cannot see each other (arXiv 2107.02027): little padding
    whatever the lengths, but attention works on longer rows."""

    kind: Literal["packed"]
    tokens: Annotated[int, Unit("tokens")] = Field(default=128, ge=1, le=1_000_000)
    """Target length of a row on either side, in tokens; a longer sentence makes every row of its
    micro-batch as long."""
    width_multiple: Annotated[int, Unit("tokens")] = Field(default=1, ge=1, le=65_536)
    """Micro-batch widths are rounded up to a multiple of this, in tokens. Fewer distinct shapes
    mean that kernels built for one shape are built once, at the cost of padding."""
    # Omitted if it is the default, so that older run specs keep their hashes.
    row_multiple: Annotated[int, Unit("rows")] = Field(
        default=1, ge=1, le=65_536, exclude_if=lambda rows: rows == 1
    )
    """Rows of a micro-batch are rounded up to a multiple of this; rows that are added have no
    label. Together with width_multiple this bounds the number of shapes."""


AnyRows = Annotated[PaddedRows | PackedRows, Field(discriminator="kind")]


class TokenBudget(Schema):
    """Batches of similar lengths with a bounded number of tokens: little padding."""

    kind: Literal["token_budget"] = "token_budget"
    tokens: Tokens = 4_096
    """Maximum tokens in a global batch, source and target with padding, over all devices."""
    scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Multiplies tokens, for variants that sweep the batch size of any study."""
    rows: AnyRows = PaddedRows()
    """How the pairs of a micro-batch are laid out in rows. This does not change any global
    batch: tokens are counted as if the pairs were padded."""

    @property
    def scaled_tokens(self) -> int:
        """Maximum tokens in a global batch."""
        return max(1, round(self.tokens * self.scale))


class FixedSize(Schema):
    """Batches of a fixed number of pairs in random order, as in the original study."""

    kind: Literal["fixed_size"]
    pairs: Annotated[int, Unit("pairs")] = Field(default=64, ge=1, le=100_000_000)
    """Sentence pairs in a global batch, over all devices."""
    scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Multiplies pairs, for variants that sweep the batch size of any study."""
    rows: AnyRows = PaddedRows()
    """How the pairs of a micro-batch are laid out in rows. This does not change any global
    batch."""

    @property
    def scaled_pairs(self) -> int:
        """Sentence pairs in a global batch."""
        return max(1, round(self.pairs * self.scale))


AnyBatching = Annotated[TokenBudget | FixedSize, Field(discriminator="kind")]
