"""The registry of parallel strategies."""

from schemas.config.parallel import (
    AnyParallel,
    Central,
    DataParallel,
    Ddp,
    Fsdp,
    LocalSteps,
    Machine,
    Single,
    TensorParallel,
)
from schemas.config.training import Accumulation
from transformer_core.parallel.central import CentralStrategy, DataParallelStrategy
from transformer_core.parallel.ddp import DdpStrategy, LocalStepsStrategy
from transformer_core.parallel.strategy import Strategy
from transformer_core.parallel.topology import Process


def build_strategy(
    spec: AnyParallel, process: Process, machine: Machine, accumulation: Accumulation
) -> Strategy:
    """Builds the strategy of ``spec``, and joins the process group if it needs one."""
    every = accumulation.synchronise == "every"
    match spec:
        case Single():
            return Strategy(process)
        case DataParallel():
            return DataParallelStrategy(spec, process, machine)
        case Central():
            return CentralStrategy(spec, process, machine, accumulation)
        case Ddp():
            return DdpStrategy(spec, process, machine, accumulation)
        case LocalSteps():
            return LocalStepsStrategy(spec, process, machine)
        # Imported late, because they import DTensor and more, which takes half a second.
        case Fsdp():
            from transformer_core.parallel.fsdp import FsdpStrategy

            return FsdpStrategy(spec, process, machine, synchronise_every=every)
        case TensorParallel():
            from transformer_core.parallel.tensor_parallel import TensorParallelStrategy

            return TensorParallelStrategy(spec, process, machine, synchronise_every=every)
