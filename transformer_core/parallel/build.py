"""The registry of parallel strategies."""

from schemas.parallel import AnyParallel, Ddp, Machine, Single
from schemas.train import Accumulation
from transformer_core.parallel.ddp import DdpStrategy
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process


def build_strategy(
    spec: AnyParallel, process: Process, machine: Machine, accumulation: Accumulation
) -> Strategy:
    """The strategy that ``spec`` names; joins the process group where it needs one."""
    match spec:
        case Single():
            return Strategy(process)
        case Ddp():
            every = accumulation.synchronise == "every"
            return DdpStrategy(spec, process, machine, synchronise_every=every)
