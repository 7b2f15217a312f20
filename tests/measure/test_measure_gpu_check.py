"""The checks of a GPU, as far as they can be tested on a CPU."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from worker_builders import gone

from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from schemas.results.gpu_check import GpuTests
from tests.records import write_tree
from transformer_core.measure.gpu_check import (
    device_facts,
    device_tests,
    first_contact,
    random_steps,
    small_gpt,
)
from transformer_core.measure.gpu_check.attention_truth import (
    all_finite,
    dropped_share,
    measure,
    padding,
    relative_error,
)
from transformer_core.measure.gpu_check.device_facts import no_device
from transformer_core.models.attention import reference_attention

CPU = torch.device("cpu")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")


@pytest.mark.parametrize("asked", [0.0, 0.1, 0.5])
def test_the_dropped_share_is_measured(asked):
    def rounded_to_a_sixteenth(q, k, v, mask, causal, dropout):
        return reference_attention(q, k, v, mask, causal, round(16 * dropout) / 16)

    torch.manual_seed(0)
    found = dropped_share(reference_attention, asked, CPU, torch.float32)
    assert found == pytest.approx(asked, abs=0.005)
    found = dropped_share(rounded_to_a_sixteenth, asked, CPU, torch.float32)
    assert found == pytest.approx({0.1: 0.125}.get(asked, asked), abs=0.005)


def test_a_kernel_that_ignores_the_mask_is_detected():
    def forgets(q, k, v, mask, causal, dropout):
        return reference_attention(q, k, v, None, causal, dropout)

    mask = padding(CPU)
    assert relative_error(reference_attention, mask, CPU, torch.bfloat16) < 0.02
    assert relative_error(forgets, mask, CPU, torch.bfloat16) > 0.1


def test_fully_masked_rows_that_become_nan_are_detected():
    def infinite(q, k, v, mask, causal, dropout):
        scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ v

    assert all_finite(reference_attention, True, 0.0, CPU, torch.float32)
    assert not all_finite(infinite, True, 0.0, CPU, torch.float32)


def test_without_a_usable_gpu_everything_is_unsupported_with_the_reason(monkeypatch):
    def refuse(machine: object) -> None:
        raise Unsupported(reason)

    reason = "driver 550 is too old"
    monkeypatch.setattr(device_facts, "require_usable_gpus", refuse)
    told: list[GpuTests] = []
    device_tests.run(1.0, told.append)
    (tests,) = told
    assert (tests.status, tests.reason, tests.passed) == ("unsupported", reason, 0)
    assert measure().reason == reason
    found = device_facts.measure()
    ends = {(one.status, one.holds, one.reason) for one in found.facts}
    assert ends == {("unsupported", None, reason)}
    assert {"platform", "torch build", "architectures"} <= found.versions.keys()
    assert any(name.startswith("package ") for name in found.versions)


@pytest.mark.slow
def test_a_broken_or_hanging_file_does_not_affect_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr(device_tests, "missing", lambda: None)
    monkeypatch.setattr(device_tests, "ROOT", tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    folder = tmp_path / "tests" / "models"
    folder.mkdir(parents=True)
    # Options of the project, for example for parallel tests, do not count.
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\naddopts = --no-such-option\n")
    head = "import os, time, pytest\nfrom pathlib import Path\n"
    test = "@pytest.mark.gpu\ndef test_{}():\n    {}\n\n\n"
    skipped = test.format("skipped", "pytest.skip('needs 2 CUDA devices')")
    plain = "def test_plain():\n    pass\n"
    # Like torchrun's ranks: in a session of its own.
    rank = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
    starts = f"import subprocess; Path('pid').write_text(str({rank}.pid)); time.sleep(600)"
    for name, text in {
        "test_broken.py": "import a_package_that_is_not_here\n",
        "test_compiled.py": test.format("last", "pass  # it would compile"),
        "test_dies.py": test.format("dies", "os._exit(3)"),
        "test_hangs.py": test.format("hangs", starts),
        "test_two.py": test.format("fails", "assert 0") + skipped + plain,
    }.items():
        (folder / name).write_text(head + "# mark.gpu\n" + text)
    (folder / "test_others.py").write_text(plain)
    assert device_tests.files()[-1].name == "test_compiled.py"
    run_file = device_tests.run_file

    def impatient(path: Path, limit: float) -> GpuTests:
        return run_file(path, 5.0 if path.name == "test_hangs.py" else limit)

    monkeypatch.setattr(device_tests, "run_file", impatient)
    told: list[GpuTests] = []
    device_tests.run(120.0, told.append)
    assert len(told) == 1 + 5, "a state before the first file, and one after each"
    assert told[-1].status == "ok"
    assert told[-1].passed == 1
    assert gone(int((tmp_path / "pid").read_text())), "a rank of the hanging test is still there"
    failed = {test.name: test.text for test in told[-1].failed}
    assert [name.split("/")[-1] for name in failed if name.startswith("tests/")] == [
        "test_dies.py",
        "test_hangs.py",
    ]
    assert "not done after 5 s" in failed["tests/models/test_hangs.py"]
    assert any("a_package_that_is_not_here" in text for text in failed.values())
    (name,) = (name for name in failed if name.endswith("test_fails"))
    assert failed[name].startswith("assert 0")
    (skipped,) = told[-1].skipped
    assert "needs 2 CUDA devices" in skipped.text
    # The times of pytest's report are rounded; a test that does nothing may take 0 s.
    assert told[-1].seconds >= 0.5, "all files together"
    assert [len(state.failed) for state in told] == [0, 1, 2, 3, 4, 4]


REFUSED = {"status": "unsupported", "reason": "NCCL refuses two ranks on one GPU: ..."}


@pytest.mark.parametrize(
    ("ends", "holds"),
    [
        ([REFUSED, REFUSED], True),
        ([REFUSED, {"status": "failed", "reason": "connection closed by peer"}], True),
        ([{"status": "ok", "sum": 2.0}] * 2, False),
        ([{"status": "failed", "reason": "NCCL error"}] * 2, False),
    ],
)
def test_two_ranks_on_one_gpu(monkeypatch, ends, holds):
    monkeypatch.setattr(device_facts, "ranks_of_nccl", lambda count: ends[:count])
    found, said = device_facts.two_ranks_on_one_gpu()
    assert found == holds
    assert str(ends[0]["status"]) in said


@pytest.mark.slow
@needs_no_gpu
def test_a_failing_rank_reports_its_reason():
    (found,) = device_facts.ranks_of_nccl(1)
    assert found["status"] == "failed"
    assert "cuda" in found["reason"].lower() or "nvidia" in found["reason"].lower()


def test_the_second_nvml_package_is_found_in_its_folder(monkeypatch, tmp_path):
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(device_facts, "ROOT", tmp_path)
    with pytest.raises(Unsupported, match="--target nvml/nvidia-ml-py3 nvidia-ml-py3"):
        device_facts.nvml_by("nvidia-ml-py3")
    folder = tmp_path / "nvml/nvidia-ml-py3"
    folder.mkdir(parents=True)
    (folder / "pynvml.py").write_text("")
    asked = []

    def start(call: str, path: Path) -> subprocess.Popen[str]:
        asked.append((call, path))
        words = ["echo", '{"names": ["H100"], "used": 5, "reserved": 4}']
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    monkeypatch.setattr(device_facts, "_start", start)
    holds, said = device_facts.nvml_by("nvidia-ml-py3")
    assert holds
    assert said.startswith("nvidia-ml-py3: {")
    assert asked == [("nvml_look()", folder)]


def test_an_exception_becomes_a_failed_fact(monkeypatch):
    def broken() -> tuple[bool, str]:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(device_facts, "no_device", lambda: None)
    found = device_facts.fact("x", "y", broken)
    assert (found.status, found.reason) == ("failed", "ZeroDivisionError: by zero")


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@needs_no_gpu
def test_first_contact_prints_a_line_for_every_item_however_it_ends(tmp_path):
    file = tmp_path / "lines.jsonl"
    probes = "items,hanging,driver,nvml,attention"
    done = subprocess.run(
        [sys.executable, "-m", "tests.measure.probing", "--output", str(file), "--only", probes],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == file.read_text()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["probe"], line["item"], line["status"]) for line in lines] == [
        ("items", "one", "ok"),
        ("items", "dies", "failed"),
        ("items", "fails", "oom"),
        ("items", "two", "ok"),
        ("hanging", "first", "ok"),
        ("hanging", "hangs", "timeout"),
        ("hanging", "never", "timeout"),
        ("driver", "", "unsupported"),
        ("nvml", "", "unsupported"),
        ("attention", next(iter(first_contact.ATTENTIONS)), "unsupported"),
    ]
    assert lines[0]["found"] == {"value": "one"}
    assert "ended with 7" in lines[1]["reason"]
    assert "out of memory" in lines[2]["reason"]
    driver, nvml, attention = lines[-3:]
    assert driver["found"]["torch"] == torch.__version__
    assert driver["reason"]
    assert nvml["reason"]
    assert attention["reason"] == no_device(), "said once for all items"
    assert "there is no CUDA device that torch can use: " in attention["reason"]


def test_without_time_every_probe_has_a_line():
    lines = list(first_contact.lines([*first_contact.PROBES], seconds=0.0))
    assert {line["status"] for line in lines} == {"timeout"}
    (attention,) = (line for line in lines if line["probe"] == "attention")
    assert "no time left for 20 items" in attention["reason"]


def test_a_probe_without_its_items_does_not_prevent_the_others(monkeypatch):
    """A package without its data files, for example, has no studies."""
    monkeypatch.setattr(first_contact, "STUDY", Path("nowhere.yaml"))
    variants, nccl = first_contact.lines(["variants", "nccl"], seconds=0.0)
    assert (variants["status"], nccl["status"]) == ("failed", "timeout")
    assert "nowhere.yaml" in variants["reason"]


def test_an_installed_first_contact_finds_its_study(tmp_path, monkeypatch):
    """A wheel has no folder config/ next to the code."""
    place = "share/transformer-training-study/config/variants.yaml"
    write_tree(
        tmp_path,
        {
            "site/transformer_training_study-1.dist-info/METADATA": "Name: transformer-training-study\nVersion: 1\n",
            "site/transformer_training_study-1.dist-info/RECORD": f"../{place},,\n",
            place: "",
        },
    )
    assert first_contact.config_folder(tmp_path / "site") != (tmp_path / place).parent
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    assert first_contact.config_folder(tmp_path / "site") == (tmp_path / place).parent
    assert first_contact.config_folder() == first_contact.ROOT / "config"


def test_variants_that_compile_are_probed_last():
    names = list(first_contact.specs())
    assert {"single", "amp_bf16", "fsdp"} <= set(names[:-2])
    assert set(names[-2:]) == {"layers_compiled", "layers_graphed"}


def three_steps(monkeypatch: pytest.MonkeyPatch, **sections: Any) -> dict[str, Any]:
    monkeypatch.setattr(random_steps, "VOCABULARY", 50)
    model = {"kind": "transformer", "d_model": 16, "d_ff": 32, "heads": 2}
    machine = {"device": "cpu", "devices_per_node": 1}
    sections = {"variant": "small", "model": model, "machine": machine} | sections
    return random_steps.three_steps(RunSpec.model_validate(sections), CPU, rows=4, width=6)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"parallel": {"kind": "ddp"}, "training": {"accumulation": {"micro_batches": 2}}},
        {"parallel": {"kind": "fsdp"}},
    ],
    ids=["single", "ddp, accumulation", "fsdp"],
)
def test_three_steps_on_random_tokens(sections, monkeypatch):
    found = three_steps(monkeypatch, **sections)
    assert (found["status"], found["graph_breaks"], found["replayed"]) == ("ok", 0, None)
    assert len(found["losses"]) == len(found["seconds"]) == 3
    assert found["losses"][2] < found["losses"][0], "it trains on the same batch"


def test_the_peak_of_memory_is_that_of_these_steps(monkeypatch):
    """One process takes the steps of all variants."""
    done: list[object] = []
    monkeypatch.setattr(random_steps, "reset_peak", done.append)
    step = random_steps.optimizer_step
    monkeypatch.setattr(
        random_steps, "optimizer_step", lambda *a: (done.append("step"), step(*a))[1]
    )
    three_steps(monkeypatch)
    assert done == [CPU, *["step"] * 3]


def test_a_loss_of_nan_is_reported(monkeypatch):
    nan = torch.tensor(torch.nan)
    monkeypatch.setattr(random_steps, "optimizer_step", lambda *_: (nan, nan))
    found = three_steps(monkeypatch)
    assert found["status"] == "diverged"
    assert "nan" in found["reason"]


def test_the_small_language_model_trains(monkeypatch, capsys):
    smaller = {"VOCABULARY": 64, "WIDTH": 32, "LAYERS": 1, "CONTEXT": 8, "STEPS": 2}
    for name, value in smaller.items():
        monkeypatch.setattr(small_gpt, name, value)
    small_gpt.main()
    assert capsys.readouterr().out.startswith("0 ")
