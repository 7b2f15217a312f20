"""A copy of the project with a tiny study, for tests that run the DAG or change its files."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]

TINY: dict[str, Any] = {
    "name": "tiny",
    "corpus": {
        "kind": "grammar",
        "train_pairs": 600,
        "validation_pairs": 40,
        "test_pairs": 20,
    },
    "filter": {"max_tokens": 80},
    "tokenizer": {"vocabulary": 320},
    "batching": {"kind": "token_budget", "tokens": 700},
    "model": {
        "kind": "transformer",
        "encoder_layers": 1,
        "decoder_layers": 1,
        "d_model": 16,
        "d_ff": 32,
        "heads": 2,
    },
    "training": {
        "steps": 12,
        "schedule": {"kind": "noam", "warmup": 4},
        "log_every": 1,
        "validate_every": 6,
    },
    "machine": {"device": "cpu", "devices_per_node": 2},
    "measurement": {"warmup_steps": 2, "window_steps": 2},
    "repeats": 1,
    "profiling": {"warmup_steps": 1, "steps": 2},
    "limits": {"seconds": 0.001, "largest_matrix": 512, "largest_message": 65536},
    "comparison": {"warmup_steps": 2, "window_seconds": 0.02, "pairs": 5, "budget": 0},
    "search": None,
    "evaluation": {"beam_size": 2, "max_pairs": 8, "samples": 2},
    "variants": ["single", "ddp"],
}


class Project:
    """The project's files in a folder of their own, and Snakemake on them."""

    program = "snakemake"
    """The module that is started as Snakemake."""

    def __init__(self, folder: Path, study: dict[str, Any]) -> None:
        self.folder = folder
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        for name in ("workflow", "config", "schemas", "transformer_core"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "Snakefile", folder)
        self.study = folder / "study.yaml"
        self.write_study(study)

    def write_study(self, study: dict[str, Any]) -> None:
        """Put this study in place of the one before."""
        self.study.write_text(yaml.safe_dump(study))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``snakemake --cores 2`` with the study, in a process group of its own."""
        command = [sys.executable, "-m", self.program, "--cores", "2", *arguments]
        return subprocess.Popen(
            [*command, "--configfile", "study.yaml", "--nocolor"],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def snakemake(self, *arguments: str) -> tuple[int, str]:
        """Run it to the end: exit code and output."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=580)
        return process.returncode, output

    def planned(self, *arguments: str) -> dict[str, int]:
        """Jobs by rule that a dry run announces."""
        code, output = self.snakemake("-n", *arguments)
        assert code == 0, output
        lines = output.split("Job stats:")[-1].splitlines() if "Job stats:" in output else []
        counts = [line.split() for line in lines]
        return {
            words[0]: int(words[1])
            for words in counts
            if len(words) == 2 and words[1].isdigit() and words[0] != "total"
        }

    def reasons(self, *arguments: str) -> str:
        """What a dry run says."""
        return self.snakemake("-n", *arguments)[1]


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill -9 for a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
