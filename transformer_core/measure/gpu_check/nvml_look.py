"""NVML's description of torch's first GPU, as JSON: ``python -m
transformer_core.measure.gpu_check.nvml_look``.

In a process of its own: the module ``pynvml`` comes with two packages, and a process has one.
"""

import json
import os

import torch

from transformer_core.parallel import nvml


def main() -> None:
    on_device = torch.ones(2**22, device="cuda")
    torch.cuda.synchronize()
    identity = nvml.cuda_uuid(0) or ""
    found, note = nvml.gpus()
    print(
        json.dumps(
            {
                "names": [gpu.name for gpu in found],
                "note": note,
                "used": nvml.memory_by_uuid().get(identity),
                "reserved": torch.cuda.memory_reserved(on_device.device),
                "process": nvml.process_memory(identity).get(os.getpid()),
                "clocks": [state.clock_megahertz for state in nvml.states()],
            }
        )
    )


if __name__ == "__main__":
    main()
