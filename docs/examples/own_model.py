"""A model of one's own: two recurrent networks, the second of which looks back at the first.

``model: {kind: import, factory: "docs.examples.own_model:build"}`` trains it.
"""

from typing import Any

from torch import Tensor, nn

PAD = 0


class Recurrent(nn.Module):
    """A GRU reads the source; another writes the target and attends to what was read
    (Luong et al., EMNLP 2015, arXiv 1508.04025)."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.target = nn.Embedding(vocabulary, width, padding_idx=PAD)
        options: dict[str, Any] = {"num_layers": layers, "batch_first": True}
        self.reader = nn.GRU(width, width, **options)
        self.writer = nn.GRU(width, width, **options)
        self.attention = nn.MultiheadAttention(width, num_heads=1, bias=False, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """source [b, s], target_input [b, t] -> logits [b, t, v] of the next tokens."""
        padding = source == PAD
        read, _ = self.reader(self.dropout(self.source(source)))
        # The mean of what was read, not the last state: padding comes last in a short sentence.
        mean = read.masked_fill(padding[:, :, None], 0).sum(1) / (~padding).sum(1, keepdim=True)
        state = mean.to(read.dtype).repeat(self.writer.num_layers, 1, 1)
        written, _ = self.writer(self.dropout(self.target(target_input)), state)
        seen, _ = self.attention(written, read, read, key_padding_mask=padding)
        return self.output(self.dropout(written + seen))


def build(spec: Any, vocabulary: int) -> nn.Module:
    """The model of the section ``model`` of a study: sizes by name, the others under options."""
    layers = int(spec.options.get("layers", spec.encoder_layers))
    return Recurrent(vocabulary, spec.d_model, layers, spec.dropout)
