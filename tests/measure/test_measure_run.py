"""Starting, sharing out and protecting a run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError, Unsupported
from transformer_core.measure.timed_run import TimedRunOrder
from transformer_core.run.launcher import KEPT, allocator_environment
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


@pytest.mark.parametrize("job", ["timed_run", "turns"])
def test_a_supervisor_starts_without_torch(job: str) -> None:
    """It would wait a second or two for torch before every run, and never use it."""
    code = f"import sys, transformer_core.measure.{job}; sys.exit('torch' in sys.modules)"
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
