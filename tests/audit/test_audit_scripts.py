"""Audits of small scripts: each of these errors is named, and no mended script is called wrong."""

import json
from pathlib import Path

import pytest

from transformer_core.audit.command import main

FIFTY = Path(__file__).resolve().parents[2] / "benchmarks/fifty/programs"

SEEN = {
    "transformers_34191": "parts",
    "laplace_redux_1": "loss",
    "wekws_73": "zero",
    "flaggems_4988": "update",
    "transformers_48745": "later",
    "transformers_47394": "shift",
    "pytorch_nlp_2": "samples",
    "siamcar_18": "trained",
}


def audit(
    name: str, which: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, dict[str, object]]:
    monkeypatch.chdir(FIFTY)
    code = main(["--json", "--time", "120s", f"{name}.py", which])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_an_error_is_named(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found = audit(name, "faulty", capsys, monkeypatch)
    findings = found["findings"]
    assert isinstance(findings, list)
    assert SEEN[name] in {f["relation"] for f in findings if f["sure"]}
    assert code == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformers_34191", "transformers_47394", "mcan_vqa_26"])
def test_a_mended_script_is_clean(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found = audit(name, "mended", capsys, monkeypatch)
    assert (code, found["findings"]) == (0, [])


def test_a_script_without_training_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing.py").write_text("print('no training here')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--json", "nothing.py"]) == 2
    assert "no training to observe" in json.loads(capsys.readouterr().out)["reason"]
    assert main(["--json", "missing.py"]) == 2
