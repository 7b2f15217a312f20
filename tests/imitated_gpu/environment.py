"""Compiles the device, and tells the Python programs of an environment to load it."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "device.cpp"


def library() -> Path:
    """The compiled device, in the folder for temporary files."""
    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"imitated-gpu-{os.getuid()}-{digest}.so"
    if not path.exists():
        words = ["g++", "-std=c++20", "-w", "-shared", "-fPIC", str(SOURCE)]
        words += [f"-I{folder}" for folder in cpp_extension.include_paths()]
        words += [f"-L{folder}" for folder in cpp_extension.library_paths()]
        made = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*words, "-lc10", "-ltorch_cpu", "-o", str(made)], check=True)
        made.replace(path)
    return path


def imitated_gpu(memory_bytes: int = 4 * 2**30) -> dict[str, str]:
    """Environment variables for programs that shall see an imitated GPU with this memory."""
    paths = [str(FOLDER), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "IMITATED_GPU": str(library()),
        "IMITATED_GPU_BYTES": str(memory_bytes),
        # Silences the warning that collectives of CUDA tensors get another kernel.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TRITON_INTERPRET": "1",
    }
