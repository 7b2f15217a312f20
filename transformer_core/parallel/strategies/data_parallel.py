"""torch.nn.DataParallel: one process, several GPUs."""

from typing import cast

import torch
from torch import Tensor, nn

from schemas.config.parallel import DataParallel, Machine
from schemas.errors import Unsupported
from transformer_core.parallel.communication.topology import Process
from transformer_core.parallel.strategies.strategy import Objective, Strategy


class DataParallelStrategy(Strategy):
    """Every forward copies the model to all GPUs, scatters the batch and gathers what comes out.

    The first GPU holds the weights, receives logits and gradients, and updates. With ``local_loss``
    the loss is computed where the logits are, and a number per GPU is gathered.
    """

    def __init__(self, spec: DataParallel, process: Process, machine: Machine) -> None:
        super().__init__(process)
        self.spec = spec
        if machine.nodes > 1:
            raise Unsupported(
                f"DataParallel drives the GPUs of one host; the study asks for {machine.nodes}"
            )
        if process.device.type != "cuda":
            raise Unsupported(
                "needs at least 2 CUDA devices: on a CPU torch.nn.DataParallel is the plain model"
            )
        if machine.devices_per_node < 2:
            raise Unsupported(
                "needs at least 2 CUDA devices, the study asks for 1: on one device "
                "torch.nn.DataParallel is the plain model"
            )
        self._devices = [torch.device("cuda", i) for i in range(machine.devices_per_node)]
        # One seed sets all GPUs alike, but replicas must not drop the same activations.
        seed = torch.initial_seed()
        for device in self._devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed + device.index)

    @property
    def devices(self) -> list[torch.device]:
        return self._devices

    def wrap(self, module: nn.Module) -> nn.Module:
        return DataParallelObjective(module, self._devices, self.spec.local_loss)


class DataParallelObjective(nn.Module):
    """An objective whose model runs on all ``devices``; its loss on the first or all of them."""

    def __init__(self, module: nn.Module, devices: list[torch.device], local_loss: bool) -> None:
        super().__init__()
        self.replicas = nn.DataParallel(Replica(module, local_loss), devices)
        self.local_loss = local_loss

    def forward(
        self,
        source: Tensor,
        target_input: Tensor,
        target_output: Tensor,
        source_full: bool = False,
    ) -> Tensor:
        """Loss sum, a scalar, from source [b, s] and target input and output [b, t]."""
        # Replicas run in threads of their own, of which torch tells whether autocast is on, but
        # not its dtype.
        autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        gathered = self.replicas(source, target_input, target_output, source_full, *autocast)
        if self.local_loss:
            return gathered.sum()
        return cast(Objective, self.replicas.module.objective).loss(gathered, target_output)


class Replica(nn.Module):
    """What runs on each device: the model, or model and loss."""

    def __init__(self, objective: nn.Module, local_loss: bool) -> None:
        super().__init__()
        self.objective = objective
        self.local_loss = local_loss

    def forward(
        self,
        source: Tensor,
        target_input: Tensor,
        target_output: Tensor,
        source_full: bool,
        autocast: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        """Logits [b, t, v], or the loss sum [1], of this device's rows."""
        with torch.autocast(source.device.type, dtype=dtype, enabled=autocast):
            if self.local_loss:
                # DataParallel gathers tensors of at least one dimension.
                return self.objective(source, target_input, target_output, source_full)[None]
            return cast(Objective, self.objective).logits(source, target_input, source_full)
