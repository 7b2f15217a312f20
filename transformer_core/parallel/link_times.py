"""Times of messages and collective operations over a link (the alpha-beta model)."""

from schemas.config.parallel import LinkModel

PAYLOAD_SHARE = 1448 / 1514
"""Share of the bits on an Ethernet that are TCP payload: of a frame of 1,514 bytes, 14 are headers of
Ethernet, 20 of IPv4, and 32 of TCP with time stamps (RFC 894, RFC 791, RFC 7323)."""
_BURST_BYTES, _BURST_SECONDS = 16 * 1024, 0.001


def burst_bytes(bandwidth: float) -> int:
    """Bytes that a limited link of ``bandwidth`` bits per second passes at once after a rest.

    No rate limit works without such bursts, but they are so small that short messages cost what they
    should.
    """
    return max(_BURST_BYTES, round(bandwidth / 8 * _BURST_SECONDS))


def burst_seconds(bandwidth: float) -> float:
    """Time in which the link normally sends :func:`burst_bytes`, and in which it regains a burst."""
    return 8 * burst_bytes(bandwidth) / bandwidth


def send_seconds(link: LinkModel, size: float) -> float:
    return link.latency + 8 * size / link.bandwidth


def all_reduce_seconds(link: LinkModel, size: float, devices: int) -> float:
    """Time to all-reduce ``size`` bytes over ``devices`` devices.

    Ring: Patarasuk and Yuan, JPDC 69, 2009. Tree: Thakur, Rabenseifner and Gropp,
    Optimization of Collective Communication Operations in MPICH, IJHPCA 19, 2005.
    """
    if devices == 1:
        return 0.0
    if link.algorithm == "tree":
        return 2 * (devices - 1).bit_length() * send_seconds(link, size)
    return 2 * (devices - 1) * send_seconds(link, size / devices)


def gather_seconds(link: LinkModel, size: float, devices: int) -> float:
    """Time of a ring all-gather, or reduce-scatter, of ``size`` bytes in total."""
    return (devices - 1) * send_seconds(link, size / devices)


def broadcast_seconds(link: LinkModel, size: float, devices: int) -> float:
    """Time to broadcast ``size`` bytes, or to reduce them to one device: a binomial tree."""
    return (devices - 1).bit_length() * send_seconds(link, size)


def scatter_seconds(link: LinkModel, size: float, devices: int) -> float:
    """Time in which one device sends all others their share of ``size`` bytes, or gathers them."""
    return (devices - 1) * send_seconds(link, size / devices)
