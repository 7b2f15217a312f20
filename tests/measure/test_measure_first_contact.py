"""First contact with a GPU, as far as a CPU can tell."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.config.run_spec import RunSpec
from transformer_core.measure.gpu_check import first_contact, random_steps, small_gpt
from transformer_core.measure.gpu_check.device_facts import no_device

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")


def run(module: str, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@needs_no_gpu
def test_an_item_that_fails_ends_or_hangs_its_process_is_a_line(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    lines = run("tests.measure.probing", "--output", str(file))
    assert lines == [json.loads(line) for line in file.read_text().splitlines()]
    told = [(line["probe"], line["item"], line["status"]) for line in lines]
    assert told == [
        ("items", "one", "ok"),
        ("items", "dies", "failed"),
        ("items", "fails", "oom"),
        ("items", "two", "ok"),
        ("hanging", "first", "ok"),
        ("hanging", "hangs", "timeout"),
        ("hanging", "never", "timeout"),
        ("device", "one", "unsupported"),
    ]
    assert lines[0]["found"] == {"value": "one"}
    assert "ended with 7" in lines[1]["reason"]
    assert "out of memory" in lines[2]["reason"]
    assert lines[-1]["reason"] == no_device()


@pytest.mark.slow
@needs_no_gpu
def test_without_a_gpu_every_probe_says_why_not() -> None:
    lines = run(first_contact.__name__, "--only", "driver,nvml,nccl")
    assert [line["probe"] for line in lines] == ["driver", "nvml", "nccl"]
    for line in lines:
        assert line["status"] == "unsupported", line
        assert line["reason"], line
    assert lines[0]["found"]["torch"] == torch.__version__


def test_no_time_is_a_line() -> None:
    lines = list(first_contact.lines([*first_contact.PROBES], seconds=0.0))
    assert {line["status"] for line in lines} == {"timeout"}
    assert (
        "no time left for 20 items"
        in {line["probe"]: line for line in lines}["attention"]["reason"]
    )


def test_variants_that_compile_come_last() -> None:
    names = list(first_contact.specs())
    assert {"single", "amp_bf16", "fsdp"} <= set(names[:-2])
    assert set(names[-2:]) == {"layers_compiled", "layers_graphed"}


def small(**sections: Any) -> RunSpec:
    model = {"kind": "transformer", "d_model": 16, "d_ff": 32, "heads": 2}
    sections["model"] = model | sections.get("model", {})
    machine = {"device": "cpu", "devices_per_node": 1}
    return RunSpec.model_validate({"variant": "small", "machine": machine} | sections)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"training": {"accumulation": {"micro_batches": 2}}},
        {"parallel": {"kind": "ddp"}},
        {"parallel": {"kind": "fsdp"}},
    ],
    ids=["single", "accumulation", "ddp", "fsdp"],
)
def test_three_steps_on_random_tokens(
    sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_steps, "VOCABULARY", 50)
    found = random_steps.three_steps(small(**sections), CPU, rows=4, width=6)
    assert (found["status"], found["graph_breaks"], found["replayed"]) == ("ok", 0, None)
    assert len(found["losses"]) == len(found["seconds"]) == 3
    assert found["losses"][2] < found["losses"][0], "it trains on the same batch"


def test_a_loss_that_is_no_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_steps, "VOCABULARY", 50)
    nan = torch.tensor(torch.nan)
    monkeypatch.setattr(random_steps, "optimizer_step", lambda *_: (nan, nan))
    found = random_steps.three_steps(small(), CPU, rows=4, width=6)
    assert found["status"] == "diverged"
    assert "nan" in found["reason"]


def test_the_small_language_model_trains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    smaller = {"VOCABULARY": 64, "WIDTH": 32, "LAYERS": 1, "CONTEXT": 8, "STEPS": 2}
    for name, value in smaller.items():
        monkeypatch.setattr(small_gpt, name, value)
    small_gpt.main()
    assert capsys.readouterr().out.startswith("0 ")
