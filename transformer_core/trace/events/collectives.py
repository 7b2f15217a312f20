"""Collectives: their names in kernels and ranges, their message sizes and bus bandwidth."""

import re

_KINDS = (
    *("reduce_scatter", "all_gather", "all_reduce", "all_to_all", "broadcast", "send_recv"),
    *("scatter", "gather", "reduce", "send", "recv", "barrier"),
)
"""A kind precedes those whose names are part of its own."""

OTHER = "other"  # a collective of unknown kind

_LIBRARY = re.compile(r"nccl|rccl|nvshmem|msccl|gloo")
_BY_ITSELF = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|multimem|"
    r"deep_ep::int(er|ra)node"
)
"""Communication kernels outside a library's name space."""

_COMPILED = re.compile(r"(graph_\d+_)?(triton_[a-z]+|cpp)_fused_")
"""Kernels of TorchInductor, named after operators inside and beside them: they compute."""

_UNNAMED = re.compile(r"(\(anonymous namespace\)|<unnamed>)::")


def collective_of(name: str) -> str | None:
    """The collective of a kernel or range; null if it is not communication.

    ``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` and ``gloo:all_reduce`` are ``all_reduce``.
    An unknown kernel of a communication library is ``other``.
    """
    # Only the name of the function: arguments and templates contain other names.
    base = re.split(r"[(<]", _UNNAMED.sub("", name.lower()), maxsplit=1)[0]
    if _COMPILED.match(base):
        return None
    return collective_named(base) if _LIBRARY.search(base) or _BY_ITSELF.search(base) else None


def collective_named(name: str) -> str:
    """The collective of a name known to denote one: ``allreduce``, ``_allgather_base``."""
    flat = name.lower().replace("_", "")
    if "crossdevicereduce" in flat:
        return "all_reduce"
    if "deepep::" in flat:  # sends tokens to experts on other ranks and back
        return "all_to_all"
    return next((kind for kind in _KINDS if kind.replace("_", "") in flat), OTHER)


POINT_TO_POINT = ("send_recv", "send", "recv")
"""Between pairs of ranks: in a pipeline, the same execution on two ranks is not the same message."""
_OF_POINT_TO_POINT = ("all_to_all", "gather", "scatter")


def refined(own: str, told: str) -> str:
    """The collective of a kernel named ``own`` whose launch says ``told``.

    NCCL runs an all-to-all, a gather and a scatter as a kernel of sends and receives.
    """
    if own == OTHER or (own in POINT_TO_POINT and told in _OF_POINT_TO_POINT):
        return told
    return own


def message_bytes(
    collective: str, input_bytes: int, output_bytes: int | None, ranks: int | None
) -> int | None:
    """The size of a message as nccl-tests counts it: the largest buffer of a rank.

    Source: PERFORMANCE.md of nccl-tests. Null if that needs the number of ranks and it is unknown.
    """
    if output_bytes:
        return max(input_bytes, output_bytes)
    if collective in ("all_gather", "gather"):
        return input_bytes * ranks if ranks else None
    return input_bytes


def bus_factor(collective: str, ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth; null where nccl-tests defines none, or one rank.

    Source: PERFORMANCE.md of nccl-tests.
    """
    if ranks < 2:
        return None
    match collective:
        case "all_reduce":
            return 2 * (ranks - 1) / ranks
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return (ranks - 1) / ranks
        case "broadcast" | "reduce" | "send_recv" | "send" | "recv":
            return 1.0
    return None
