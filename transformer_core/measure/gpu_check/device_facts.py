"""Checks the environment of the GPU: NVML, NCCL and compiling, with all versions.

Some checks need separate processes: two packages provide NVML's module ``pynvml``, but a process can
import only one of them; and each rank of NCCL is a process.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from schemas.config.parallel import Machine
from schemas.errors import Unsupported
from schemas.results import Status
from schemas.results.gpu_check import DeviceFact, DeviceFacts
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.models import loss as one_pass_loss
from transformer_core.parallel import nvml
from transformer_core.parallel.topology import cuda_fault, require_usable_gpus
from transformer_core.run.statuses import classify
from transformer_core.techniques.residual_norm import added_and_normalized, by_torch

ROOT = Path(__file__).parents[3]
NVML_PACKAGES = ("nvidia-ml-py", "nvidia-ml-py3")
OTHERS = "nvml"  # folder in the checkout for the package that is not installed
_MEETING_SECONDS = 30  # seconds that ranks wait for one another
_TOLD = ("CUDA", "NCCL", "TORCH", "PYTORCH", "NVIDIA", "OMP_", "TRITON")
"""Prefixes of the environment variables that are reported."""

Look = Callable[[], tuple[bool, str]]
"""Whether the expectation holds, and the findings; Unsupported if it cannot hold here."""


def no_device() -> str | None:
    try:
        require_usable_gpus(Machine(device="cuda", devices_per_node=1))
    except Unsupported as error:
        return str(error)
    fault = cuda_fault()
    return None if fault is None else f"there is no CUDA device that torch can use: {fault}"


def fact(name: str, expected: str, look: Look) -> DeviceFact:
    """The result of ``look``, or the reason why it has none."""
    known: dict[str, Any] = {"holds": None, "found": "", "reason": no_device()}
    status: Status = "unsupported" if known["reason"] else "ok"
    if status == "ok":
        try:
            known["holds"], known["found"] = look()
        except Exception as error:  # any error, since the other facts are still needed
            status, known["reason"] = classify(error)
    return DeviceFact(name=name, expected=expected, status=status, **known)


def _start(call: str, path: Path | None = None) -> subprocess.Popen[str]:
    """A process that prints the result of a ``call`` in this module; ``path`` has packages for it."""
    before = [str(path)] if path else []
    paths = [*before, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-c", f"import json, {__name__} as m; print(json.dumps(m.{call}))"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )


def _heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The printed result; RuntimeError with the last line of its errors if there is none."""
    try:
        said, errors = process.communicate(timeout=3 * _MEETING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        said, errors = process.communicate()
    for line in reversed(said.splitlines()):  # libraries print, too
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError(errors.strip().split("\n")[-1])


def nvml_look() -> dict[str, Any]:
    """NVML's description of torch's first GPU."""
    on_device = torch.ones(2**22, device="cuda")
    torch.cuda.synchronize()
    identity = nvml.cuda_uuid(0) or ""
    found, note = nvml.gpus()
    return {
        "names": [gpu.name for gpu in found],
        "note": note,
        "used": nvml.memory_by_uuid().get(identity),
        "reserved": torch.cuda.memory_reserved(on_device.device),
        "process": nvml.process_memory(identity).get(os.getpid()),
        "clocks": [state.clock_megahertz for state in nvml.states()],
    }


def nvml_by(package: str) -> tuple[bool, str]:
    """Whether NVML knows torch's device, queried through the module of ``package``."""
    try:
        name, path = f"{package} {metadata.version(package)}", None
    except metadata.PackageNotFoundError:
        name, path = package, ROOT / OTHERS / package
        if not (path / "pynvml.py").is_file():
            raise Unsupported(
                f"{package} is not installed: pip install --no-deps --target {OTHERS}/{package} "
                f"{package}"
            ) from None
    found = _heard(_start("nvml_look()", path))
    knows = found["used"] is not None and found["used"] >= found["reserved"]
    return knows and bool(found["names"]), f"{name}: {json.dumps(found)}"


def nccl_rank(rank: int, world_size: int, meeting: str) -> dict[str, Any]:
    """The sum over all ranks of a one from each, or how this rank ended."""
    device = torch.device("cuda", 0)
    try:
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=_MEETING_SECONDS),
            device_id=device,
        )
        one = torch.ones(1, device=device)
        dist.all_reduce(one)
        return {"status": "ok", "sum": float(one)}
    except Exception as error:  # any error is the result
        status, reason = classify(error)
        return {"status": status, "reason": reason}


def ranks_of_nccl(count: int) -> list[dict[str, Any]]:
    """Starts ``count`` ranks of NCCL on the first GPU and returns how each ended."""
    with tempfile.TemporaryDirectory() as folder:
        calls = [f"nccl_rank({rank}, {count}, {folder + '/meeting'!r})" for rank in range(count)]
        found = []
        for process in [_start(call) for call in calls]:
            try:
                found.append(_heard(process))
            except RuntimeError as error:
                found.append({"status": "failed", "reason": str(error)})
        return found


def one_rank() -> tuple[bool, str]:
    (found,) = ranks_of_nccl(1)
    return found == {"status": "ok", "sum": 1.0}, json.dumps(found)


def two_ranks_on_one_gpu() -> tuple[bool, str]:
    """Whether NCCL refuses, and its message is recognised."""
    found = ranks_of_nccl(2)
    refused = [one for one in found if one["status"] == "unsupported"]
    return bool(refused) and all(one["status"] != "ok" for one in found), json.dumps(found)


def kernels() -> tuple[bool, str]:
    """Whether Triton's kernels compile here and agree with torch's operations."""
    device = torch.device("cuda", 0)
    if reason := one_pass_loss._why_no_kernel(device):
        return False, f"not compiled: {reason}"
    torch.manual_seed(0)
    logits = torch.randn(64, 1000, device=device)
    labels = torch.randint(1, 1000, (64,), device=device)
    expected = [*one_pass_loss._loss_and_gradient(logits, labels, None, 0.1, 1.0)]
    found = [*one_pass_loss._in_one_kernel(logits.clone(), labels, None, 0.1, 1.0)]
    x, residual = torch.randn(2, 64, 512, device=device)
    norm = torch.nn.LayerNorm(512, device=device)
    found += added_and_normalized(residual, x, norm, 0.0, "cuda")
    expected += by_torch(residual, x, norm, 0.0)
    error = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    return error < 1e-4, f"largest difference {error:.2g}"


def versions() -> dict[str, str]:
    """Everything that errors may depend on: builds, libraries, and the environment."""
    found = {"platform": platform.platform(), "executable": sys.executable}
    found["torch build"] = torch.__config__.show().replace("\n", "; ")
    found["architectures"] = ", ".join(torch.cuda.get_arch_list()) or "none"
    for one in sorted(metadata.distributions(), key=lambda d: str(d.metadata["Name"]).lower()):
        found[f"package {one.metadata['Name']}"] = one.version
    for name, value in sorted(os.environ.items()):
        if name.startswith(_TOLD):
            found[f"variable {name}"] = value
    return found


def measure() -> DeviceFacts:
    seen = "NVML knows torch's device and counts what torch has reserved, asked through {}."
    facts = [
        fact(f"NVML by {package}", seen.format(package), partial(nvml_by, package))
        for package in NVML_PACKAGES
    ]
    facts += [
        fact("NCCL, one rank", "A process group of one rank adds up.", one_rank),
        fact(
            "NCCL, two ranks on one GPU",
            "NCCL refuses them, and the status is unsupported, with the remedy.",
            two_ranks_on_one_gpu,
        ),
        fact(
            "Triton",
            "Triton's kernels (loss, normalization) compile, and agree with torch's operations.",
            kernels,
        ),
    ]
    return DeviceFacts(facts=facts, versions=versions())


class DeviceFactsJob(Job):
    """Checks whether NVML, NCCL and compiling work here, and lists all versions."""

    kind = "device_facts"

    output: Path
    """device.json to write."""

    def run(self, log_file: Path | None) -> None:
        found = measure()
        for one in found.facts:
            log.info("%s: %s %s", one.name, one.status, one.found or one.reason)
        write_text(self.output, found.model_dump_json(indent=1) + "\n")
