"""The first program to run on a new GPU: ``first-contact``.

It runs probes in separate processes, the most informative first, and prints a line of JSON after
each item: whatever ends the program or the use of the machine, the earlier lines remain. If an item
ends its process, the next items continue in a new one.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args

from schemas.config.model import AttentionBackend
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.common.endings import program
from transformer_core.run.statuses import classify
from transformer_core.study.resolve import check_study, resolve_all
from transformer_core.study.study_files import read_mapping
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).parents[3]
_INSTALLED = "share/transformer-training-study/config/variants.yaml"


def config_folder(root: Path = ROOT) -> Path:
    """The folder config/ of this checkout, or the one installed with the package."""
    if not (root / "config/variants.yaml").is_file():
        with suppress(PackageNotFoundError):
            for file in files("transformer-training-study") or []:
                if file.as_posix().endswith(_INSTALLED):
                    return Path(str(file.locate())).resolve().parent
    return root / "config"


STUDY = config_folder() / "studies/h200.yaml"
SMALL_GPT = Path(__file__).with_name("small_gpt.py")
SECONDS = 240.0  # time for all probes
TOLD = 2_000  # characters kept of the end of an error
START_SECONDS = 5.0  # remaining time necessary to start a process, which must import torch
Found = dict[str, Any]


@dataclass(frozen=True)
class Probe:
    """A probe of several items; imports torch only in its own process."""

    look: Callable[[str], Found]
    """Examines an item. The status is ok unless the result has another."""
    seconds: float  # most seconds for all its items
    items: Callable[[], list[str]] = lambda: [""]
    needs_device: bool = True


def driver(_: str) -> Found:
    import torch

    from transformer_core.parallel.topology import cuda_fault

    found: Found = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "architectures": torch.cuda.get_arch_list(),
        "variables": {k: v for k, v in os.environ.items() if "CUDA" in k or "NVIDIA" in k},
    }
    if fault := cuda_fault():
        return found | {"status": "unsupported", "reason": fault}
    device = torch.cuda.get_device_properties(0)
    return found | {
        "device": device.name,
        "capability": [device.major, device.minor],
        "memory_bytes": device.total_memory,
        "multiprocessors": device.multi_processor_count,
        "cudnn": torch.backends.cudnn.version(),
    }


def nvml_state(_: str) -> Found:
    from transformer_core.parallel import nvml

    gpus, note = nvml.gpus()
    if not gpus:
        raise Unsupported(note or "NVML lists no GPU")
    return {
        "gpus": [gpu.model_dump() for gpu in gpus],
        "note": note,
        "states": [state.model_dump() for state in nvml.states()],
        "counters": nvml.counters(),
        "used_bytes": nvml.memory_by_uuid(),
        "exclusive": nvml.exclusive_gpus(),
    }


def allocator(_: str) -> Found:
    """Whether expandable segments work, and how much of a GiB NVML counts."""
    import torch

    from transformer_core.parallel import nvml, settling

    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    why_not = settling.take_segments(torch.device("cuda", 0))
    before = nvml.device_memory_used(0)
    kept = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return {
        "segments_grow": any(s.get("is_expandable") for s in torch.cuda.memory_snapshot()),
        "why_not": why_not,
        "asked_bytes": kept.numel(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "nvml_bytes_before_and_after": [before, nvml.device_memory_used(0)],
    }


def products(number_format: str) -> Found:
    import torch

    n, dtypes = 8192, {"bf16": torch.bfloat16, "fp16": torch.float16}
    torch.backends.cuda.matmul.allow_tf32 = number_format == "tf32"
    dtype = dtypes.get(number_format, torch.float32)
    a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {"size": n, "flops_per_second": 2 * n**3 / min(seconds)}


ATTENTIONS = {
    f"{backend}, {'mask' if masked else 'no mask'}, dropout {dropout:g}": (backend, masked, dropout)
    for backend, masked, dropout in product(get_args(AttentionBackend), (False, True), (0.0, 0.1))
}


def attention(item: str) -> Found:
    from transformer_core.measure.gpu_check.attention_truth import truth
    from transformer_core.models.attention import leave_out_cudnn

    leave_out_cudnn()
    return truth(*ATTENTIONS[item]).model_dump()


def specs() -> dict[str, RunSpec]:
    """The run specs of the study; those that compile come last."""
    found = resolve_all(
        check_study(read_mapping(STUDY), str(STUDY)),
        read_variants(config_folder() / "variants.yaml")[0],
    )
    return dict(sorted(found.items(), key=lambda item: "layers_" in item[0]))


def variant(name: str) -> Found:
    import torch

    from transformer_core.measure.gpu_check.random_steps import three_steps

    return three_steps(specs()[name], torch.device("cuda", 0))


def nccl(_: str) -> Found:
    from transformer_core.measure.gpu_check.device_facts import ranks_of_nccl

    return ranks_of_nccl(1)[0]


def profile(name: str) -> Found:
    import torch

    from transformer_core.measure.gpu_check.random_steps import profiled_step

    return profiled_step(specs()[name], torch.device("cuda", 0))


def tuned(_: str) -> Found:
    left = float(os.environ[_LEFT])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "transformer_core.tune", "--json", "--no-verify"]
        command += ["--time", f"{max(10, int(0.7 * left))}s", "--folder", folder, str(SMALL_GPT)]
        # Its jobs start in the folder, where Python does not find a checkout that is not installed.
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            logs = sorted([*Path(folder).rglob("*.log"), *Path(folder).rglob("output.txt")])
            ends = [f"{log.name}: {log.read_text(errors='replace')[-TOLD:]}" for log in logs]
            raise RuntimeError("\n".join([(done.stdout + done.stderr)[-TOLD:], *ends])[-3 * TOLD :])
    answer: Found = json.loads(done.stdout)
    return answer


PROBES = {
    "driver": Probe(driver, 30, needs_device=False),
    "nvml": Probe(nvml_state, 20, needs_device=False),
    "allocator": Probe(allocator, 30),
    "products": Probe(products, 30, lambda: ["bf16", "fp16", "tf32", "fp32"]),
    "attention": Probe(attention, 40, lambda: list(ATTENTIONS)),
    "variants": Probe(variant, 110, lambda: list(specs())),
    "nccl": Probe(nccl, 40),
    "profile": Probe(profile, 40, lambda: ["amp_bf16"]),
    "tune": Probe(tuned, 100),
}
"""In the order in which they run."""

_LEFT = "FIRST_CONTACT_SECONDS_LEFT"


def look_at(name: str, items: Sequence[str], lines: Connection, said: int) -> None:
    """In a separate process: examines the ``items`` of a probe, and sends a line after each. Output
    of libraries goes to the file ``said``."""
    os.setsid()
    os.dup2(said, 1)
    os.dup2(said, 2)
    probe, reason = PROBES[name], None
    if probe.needs_device:
        from transformer_core.measure.gpu_check.device_facts import no_device

        reason = no_device()
    for item in items:
        if reason is not None:
            found: Found = {"status": "unsupported", "reason": reason}
        else:
            try:
                found = probe.look(item)
            except Exception as error:  # any error, since the other items are still needed
                status, why = classify(error)
                found = {"status": status, "reason": why[-3 * TOLD :]}
        status, why = found.pop("status", "ok"), found.pop("reason", None)
        line = {"item": item, "status": status, "reason": why, "found": found}
        lines.send(json.dumps(line, default=str))
        if reason is not None:
            return  # the reason applies to all items


def lines(names: Sequence[str], seconds: float) -> Iterator[Found]:
    """Runs probes in separate processes; yields the line of every item as soon as it is known."""
    end = time.monotonic() + seconds
    for name in names:
        try:
            waiting = PROBES[name].items()
        except Exception as error:  # any error, since the other probes are still needed
            yield _line(name, "", *classify(error))
            continue
        until = min(end, time.monotonic() + PROBES[name].seconds)
        while waiting:
            left = until - time.monotonic()
            if left < START_SECONDS:
                yield _line(name, waiting[0], "timeout", f"no time left for {len(waiting)} items")
                break
            ended = yield from _of_a_process(name, waiting, left)
            if ended is None:
                break
            # The item that ended the process is not tried again.
            yield _line(name, waiting.pop(0), *ended)


def _line(name: str, item: str, status: str, reason: str) -> Found:
    return {"probe": name, "item": item, "status": status, "reason": reason, "found": {}}


def _of_a_process(
    name: str, waiting: list[str], left: float
) -> Generator[Found, None, tuple[str, str] | None]:
    """Yields the lines of a process for the ``waiting`` items, and removes these from the list.
    Returns status and reason if the process did not finish."""
    began = time.monotonic()
    # This process has not imported torch, so its forks are like new processes.
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryFile("w+") as said:
        receiver, sender = fork.Pipe(duplex=False)
        os.environ[_LEFT] = str(left)
        process = fork.Process(target=look_at, args=(name, waiting, sender, said.fileno()))
        process.start()
        sender.close()
        late = False
        try:
            while not (late := not receiver.poll(max(0.0, left - (time.monotonic() - began)))):
                line = json.loads(receiver.recv())
                waiting.remove(line["item"])
                seconds = round(time.monotonic() - began, 2)
                yield {"probe": name} | line | {"seconds": seconds}
        except EOFError:
            process.join()
        finally:
            assert process.pid is not None
            with suppress(ProcessLookupError):  # with everything it started
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        said.seek(0)
        end = said.read()[-TOLD:].strip()
    if late:
        return "timeout", f"not done after {left:.0f} s; it said: {end}"
    if process.exitcode:
        return "failed", f"ended with {process.exitcode}; it said: {end}"
    return None


@program
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="first-contact",
        description="Examine a new GPU: print a line of JSON for every finding.",
    )
    about = "time for all probes (default: %(default)g)"
    parser.add_argument("--seconds", type=float, default=SECONDS, help=about)
    about = "file to which the lines are also written"
    parser.add_argument("--output", type=Path, metavar="FILE", help=about)
    about = f"probes to run, separated by commas (default: {','.join(PROBES)})"
    parser.add_argument("--only", metavar="NAMES", help=about)
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(PROBES)
    if unknown := [name for name in names if name not in PROBES]:
        parser.error(f"--only {unknown[0]}: no such probe; choose from {', '.join(PROBES)}")
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
    with given.output.open("w") if given.output else nullcontext() as file:
        for line in lines(names, given.seconds):
            text = json.dumps(line)
            print(text, flush=True)
            if file is not None:
                print(text, file=file, flush=True)


if __name__ == "__main__":
    main()
