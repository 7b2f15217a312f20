"""Starting, sharing out and protecting a run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError, Unsupported
from transformer_core.measure.timed_run import TimedRunOrder
from transformer_core.run.launcher import KEPT, KEPT_KERNELS, allocator_environment
from transformer_core.run.order import Order
from transformer_core.run.supervisor import run_workers


def spec(parallel: str, **machine: int | str) -> RunSpec:
    return RunSpec.model_validate(
        {"variant": "v", "parallel": {"kind": parallel}, "machine": machine}
    )


def test_workers_get_their_share_of_threads_whatever_the_workflow_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Snakemake sets MKL_NUM_THREADS to the threads of the job, and torch listens to it first."""
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (tmp_path / "count_threads.py").write_text(
        "import pathlib, sys, torch\n"
        "def main():\n"
        "    pathlib.Path(sys.argv[1]).with_name('threads').write_text(\n"
        "        str(torch.get_num_threads()))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(Order, "worker", "count_threads")
    order = Order(spec=spec("single", threads=1), output=tmp_path, command="")
    assert run_workers(order) == 0
    assert (tmp_path / "threads").read_text() == "1"


def test_workers_keep_freed_memory_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "show_environment.py").write_text(
        "import json, os, pathlib, sys\n"
        "def main():\n"
        "    pathlib.Path(sys.argv[1]).with_name('told').write_text(\n"
        "        json.dumps(dict(os.environ)))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    order = Order(spec=spec("single"), output=tmp_path, command="")
    monkeypatch.setattr(Order, "worker", "show_environment")
    assert run_workers(order) == 0
    environment = json.loads((tmp_path / "told").read_text())
    assert environment["MALLOC_TRIM_THRESHOLD_"] == KEPT["MALLOC_TRIM_THRESHOLD_"]
    assert environment["MALLOC_MMAP_THRESHOLD_"] == "65536"


def test_allocators_are_chosen_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allocator_environment("default") == {}
    assert allocator_environment("kept") == KEPT
    assert allocator_environment("huge_pages")["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    monkeypatch.setattr(
        "ctypes.util.find_library", lambda name: {"tcmalloc_minimal": "libt.so.4"}.get(name)
    )
    assert allocator_environment("tcmalloc") == {"LD_PRELOAD": "libt.so.4"}
    with pytest.raises(Unsupported, match="jemalloc, which is not installed"):
        allocator_environment("jemalloc")


def test_supervisors_start_without_torch() -> None:
    """They would wait a second or two for torch before every run, and never use it."""
    jobs = "transformer_core.measure.timed_run, transformer_core.measure.self_test"
    code = f"import sys, {jobs}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_order_is_read_as_it_was_written(tmp_path: Path) -> None:
    order = TimedRunOrder(
        spec=spec("ddp", nodes=2), data=Path("d"), output=tmp_path, command="again", repeat=2
    )
    first, second = order.write(), order.write(node_rank=1)
    assert (first.name, second.name) == ("order.json", "host-1-order.json")
    for file in (first, second):
        read = TimedRunOrder.read(file)
        assert read == order
        assert read.spec.digest() == order.spec.digest()
    with pytest.raises(ConfigError, match="seeds"):
        TimedRunOrder.read(write_json(tmp_path / "other.json", first, seeds=1))


def write_json(file: Path, other: Path, **more: object) -> Path:
    """What ``other`` holds, and ``more``."""
    file.write_text(json.dumps(json.loads(other.read_text()) | more))
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_the_launcher_ends_with_the_run(tmp_path: Path) -> None:
    run = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from schemas.config.run_spec import RunSpec\n"
        "from transformer_core.run import supervisor\n"
        "from transformer_core.run.order import Order\n"
        "class Told(subprocess.Popen):\n"
        "    def __init__(self, *args, **options):\n"
        "        super().__init__(*args, **options)\n"
        "        print(self.pid, flush=True)\n"
        "subprocess.Popen = Told\n"
        "supervisor.launcher = lambda spec, worker, place: ['sh', '-c', 'exec sleep 300']\n"
        "order = Order(spec=RunSpec(variant='v'), output=Path(sys.argv[1]), command='')\n"
        "supervisor.run_workers(order)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", run, str(tmp_path)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert running(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        for _ in range(1_000):
            if not running(child):
                return
            time.sleep(0.02)
    pytest.fail(f"process {child} outlived its run")


def running(pid: int) -> bool:
    """Whether the process is there, and not a dead one that nobody has waited for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


TWICE = """
import torch

torch.set_num_threads(1)
layer = torch.nn.Linear(256, 256).bfloat16()
for _ in range(2):
    print("AGAIN", flush=True)
    for rows in range(100, 130):
        layer(torch.ones(rows, 256, dtype=torch.bfloat16)).sum().backward()
"""


def made_again(kept: int) -> int:
    """Kernels that a process makes again for known shapes, as oneDNN logs them."""
    environment = os.environ | dict.fromkeys(KEPT_KERNELS, str(kept)) | {"ONEDNN_VERBOSE": "2"}
    command = [sys.executable, "-c", TWICE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("AGAIN")[2].count("create:cache_miss")


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN makes no kernels for bfloat16 on this CPU",
)
def test_no_more_kernels_are_kept_than_may_be() -> None:
    assert made_again(1_000) == 0
    assert made_again(8) >= 30, "one for each shape at least"
