"""Starting, sharing out and protecting a run."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schemas.study import RunSpec
from transformer_core.measure.run import ALLOCATOR, exclusive, reproducing_command, run_workers


def spec(parallel: str, **machine: int | str) -> RunSpec:
    return RunSpec.model_validate(
        {"variant": "v", "parallel": {"kind": parallel}, "machine": machine}
    )


def test_the_command_names_target_and_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_OPTIONS", "--configfile=my.yaml")
    command = reproducing_command(Path("results/runs/v/repeat-1/metrics.json"))
    assert command == (
        "snakemake --cores all results/runs/v/repeat-1/metrics.json --configfile=my.yaml"
    )


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    holder = (
        "import pathlib, sys\n"
        "from transformer_core.measure.run import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    pathlib.Path(sys.argv[1], 'done').touch()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline().strip() == "held"
        waiting = (
            "import pathlib, sys\n"
            "from transformer_core.measure.run import exclusive\n"
            "with exclusive(pathlib.Path(sys.argv[1])):\n"
            "    print(pathlib.Path(sys.argv[1], 'done').exists())\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", waiting, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as second:
            time.sleep(0.5)
            assert second.poll() is None, "it did not wait"
            other.stdin.write("\n")
            other.stdin.flush()
            assert second.stdout is not None
            assert second.stdout.readline().strip() == "True"


def test_the_lock_is_free_again(tmp_path: Path) -> None:
    for _ in range(2):
        with exclusive(tmp_path):
            pass


def test_workers_get_their_share_of_threads_whatever_the_workflow_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Snakemake sets MKL_NUM_THREADS to the threads of the job, and torch listens to it first."""
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (tmp_path / "count_threads.py").write_text(
        "import pathlib, sys, torch\n"
        "def main():\n"
        "    pathlib.Path(sys.argv[1]).write_text(str(torch.get_num_threads()))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = tmp_path / "threads"
    assert run_workers(spec("single", threads=1), "count_threads", [str(found)]) == 0
    assert found.read_text() == "1"


def test_workers_keep_freed_memory_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "show_environment.py").write_text(
        "import json, os, pathlib, sys\n"
        "def main():\n"
        "    pathlib.Path(sys.argv[1]).write_text(json.dumps(dict(os.environ)))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    found = tmp_path / "environment"
    assert run_workers(spec("single"), "show_environment", [str(found)]) == 0
    environment = json.loads(found.read_text())
    assert environment["MALLOC_TRIM_THRESHOLD_"] == ALLOCATOR["MALLOC_TRIM_THRESHOLD_"]
    assert environment["MALLOC_MMAP_THRESHOLD_"] == "65536"


@pytest.mark.parametrize("job", ["run", "short_run"])
def test_a_supervisor_starts_without_torch(job: str) -> None:
    """It would wait a second or two for torch before every run, and never use it."""
    code = f"import sys, transformer_core.measure.{job}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
