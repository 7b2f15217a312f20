"""The phases of a training step, by the names of the ranges that mark them in a trace."""

import re

STEP = "step"
"""The range around a whole optimizer step. Ranges of it are numbered in order of time."""

DATA = "data"
FORWARD = "forward"
LOSS = "loss"
BACKWARD = "backward"
OPTIMIZER = "optimizer"

PHASES = (DATA, FORWARD, LOSS, BACKWARD, OPTIMIZER)
"""The phases of a step, in order. The loss may lie inside the forward: the innermost range owns."""

LOADER = "loader"
"""Where the phases are listed: what threads did that launch no kernel of the step."""

PREFIX = "phase:"
"""What the project's own ranges start with, in NVTX and in torch.profiler alike."""

LAYER_PREFIX = "layer:"
"""What the project's ranges of modules start with; the path of the module follows."""

ALLOCATED_PREFIX = "allocated:"
"""What the project's marks of allocated memory start with; the number of the device and the bytes
follow, with a colon between."""

_FOREIGN = (
    (re.compile(r"ProfilerStep#\d+"), STEP),
    (re.compile(r"Optimizer\.step#.*|Optimizer\.zero_grad#.*"), OPTIMIZER),
    (re.compile(r"enumerate\(DataLoader\)#.*"), DATA),
    (re.compile(r"DistributedDataParallel\.forward"), FORWARD),
    (re.compile(r"autograd::engine::evaluate_function: .*"), BACKWARD),
)
"""Ranges that PyTorch sets by itself, for traces that the project did not capture."""

_WORD = re.compile(r"[\W_]*(step|data|forward|loss|backward|optimizer)[\W_]*(\d*)", re.IGNORECASE)


def label(phase: str) -> str:
    """The name of the range that marks ``phase``; the counterpart of :func:`phase_of`."""
    return PREFIX + phase


def phase_of(name: str) -> str | None:
    """The phase that a range marks, or null: a range of this project, or one that users and
    PyTorch commonly set (``## forward ##``, ``ProfilerStep#7``)."""
    if name.startswith(PREFIX):
        phase = name.removeprefix(PREFIX)
        return phase if phase == STEP or phase in PHASES else None
    if match := _WORD.fullmatch(name):
        return match[1].lower()
    return next((phase for pattern, phase in _FOREIGN if pattern.fullmatch(name)), None)
