"""The original study's machine in the model of projections: how much of its 79 % is explained?

Nothing here was measured: the numbers are those that the study and the vendor give, and what nobody
gives is a range.
"""

from schemas.config.link import LinkModel
from schemas.results import ExplainedShare, OriginalMachine
from transformer_core.parallel.communication.link_times import all_reduce_seconds

DEVICES = 4
REPORTED_SHARE = 0.79
"""Share of the time on CUDA streams in all-reduce and broadcast, as the study read it off Nsight
Systems."""

LAYERS, D_MODEL, D_FF, VOCABULARY = 6, 512, 2048, 30_000
PAIRS_PER_DEVICE = 512
"""At most: with more, the first GPU ran out of memory."""

TOKENS_PER_PAIR = (20, 100)
"""Source and target together: not given, from short to long sentences."""

PEAK_FLOPS_PER_SECOND = 35.58e12
"""GeForce RTX 3090, 32-bit without tensor cores (NVIDIA, Ampere GA102 GPU Architecture, 2020)."""

UTILISATIONS = (0.2, 0.6)
"""Share of the peak that matrix products of this size may reach: not given."""

LINK_BYTES_PER_SECOND = (3e9, 25e9)
"""From PCI Express 3.0 x4, or x16 by way of the host's memory, to PCI Express 4.0 x16 as it is
used: not given. The link itself carries 31.5 GB/s (PCI-SIG, PCI Express Base Specification 4.0)."""


def parameters() -> int:
    """Weights of the matrices of the Annotated Transformer, its three tables apart."""
    attention, feed_forward = 4 * D_MODEL**2, 2 * D_MODEL * D_FF
    layers = LAYERS * (attention + feed_forward) + LAYERS * (2 * attention + feed_forward)
    return layers + 3 * VOCABULARY * D_MODEL


def worked_example() -> OriginalMachine:
    """The share of one all-reduce per step in its sum with forward and backward, at the ends of
    what is not known."""
    weights = parameters()
    # A look-up in a table is no product: of the three tables, only the projection counts.
    multiplied = weights - 2 * VOCABULARY * D_MODEL
    cases = []
    for rate in LINK_BYTES_PER_SECOND:
        for utilisation in UTILISATIONS:
            for tokens in TOKENS_PER_PAIR:
                link = LinkModel(bandwidth=8 * rate)
                communication = all_reduce_seconds(link, 4 * weights, DEVICES)
                # Half of the tokens are the encoder's, half the decoder's, each with its weights.
                flops = 6 * multiplied * PAIRS_PER_DEVICE * tokens / 2
                compute = flops / (utilisation * PEAK_FLOPS_PER_SECOND)
                cases.append(
                    ExplainedShare(
                        link_bytes_per_second=rate,
                        utilisation=utilisation,
                        tokens_per_pair=tokens,
                        all_reduce_seconds=communication,
                        compute_seconds=compute,
                        share=communication / (communication + compute),
                    )
                )
    return OriginalMachine(
        parameters=weights,
        devices=DEVICES,
        pairs=PAIRS_PER_DEVICE,
        peak_flops_per_second=PEAK_FLOPS_PER_SECOND,
        reported_share=REPORTED_SHARE,
        cases=cases,
    )
