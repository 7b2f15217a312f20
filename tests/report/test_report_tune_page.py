"""The page about a training script."""

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from traces import break_down, event_table, mark, work

from schemas.config.study import Study
from schemas.results import Breakdown
from tests.records import record
from transformer_core.common.digests import write_result
from transformer_core.report.tune_page import TunePageJob, render
from transformer_core.trace.breakdown.summary import summarise
from transformer_core.tune.answer import Answer, Profiled, Tried

SAME = {"word": "same", "reason": "gradients differ by at most 1e-7"}
PARTS = {"libraries": 1, "weights": 2, "gradients": 3, "optimizer": 4, "peak": 11}
FACTS = {"modules": ["Net"], "parameters": 7, "tensors": 2, "formats": ["float32"]}
FACTS |= {"optimizers": ["SGD"], "device": "cpu", "dropout": []}


def page(tmp_path, patched: Tried, **more: Any) -> str:
    study = Study.model_validate({"name": "tune", "variants": ["baseline"]})
    answer = Answer(
        "train.py",
        trust="the same",
        facts=FACTS,
        diff="-a\n+b\n",
        patched=patched,
        memory=PARTS,
        **more,
    )
    return render(answer, study, {}, tmp_path)


def test_heads_are_aligned_like_their_columns(tmp_path):
    shown = page(tmp_path, Tried(("bf16",), certificate=SAME, ratio=1.2, low=1.1, high=1.3))
    start = shown.index("<table", shown.index('aria-labelledby="memory-heading"'))
    end = shown.index("</table>", start) + len("</table>")
    table = ElementTree.fromstring(shown[start:end].replace("&nbsp;", " "))
    heads, row = ([cell.get("class") for cell in tr] for tr in table.iter("tr"))
    assert heads == row == [None, *["number"] * 6]


def test_every_class_of_operators_of_any_profile_has_a_row(tmp_path):
    def profiled(*classes: str) -> Profiled:
        rows = [
            work("k", 10 * n, 10 * n + 5, operator_class=each, step=0)
            for n, each in enumerate(classes)
        ]
        devices = break_down(event_table([*rows, mark("step", 0, 100, step=0)]))
        ended = {"name": "one", "status": "ok", "source": "kineto", "summary": summarise(devices)}
        return Profiled(classes[1:], record(Breakdown, devices=devices, **ended).model_dump())

    profiles = [profiled("contraction"), profiled("contraction", "normalization")]
    shown = page(tmp_path, Tried(("bf16",)), profiles=profiles)
    table = shown[shown.index('id="operators-caption"') :]
    assert "statistical normalization" in table[: table.index("</table>")]
    assert 'id="phases-caption"' not in shown, "nothing marks a phase"
    assert "<strong>Where the time of a step goes.</strong> Wall time" in shown
    assert "What do steps wait for?" not in shown, "this page has no such table"


def test_times_have_units_that_suit_them(tmp_path):
    shown = page(tmp_path, Tried(("bf16",)), step_seconds=0.0001234, seconds=4000.0)
    assert re.findall(r"<dd><data [^>]+>([^<]+)</data></dd>", shown) == ["123 µs", "66.7 min"]


def test_techniques_are_explained(tmp_path):
    tried = [Tried(("bf16",)), Tried(("bf16", "gc_off"))]
    shown = page(tmp_path, tried[0], tried=tried, words={"bf16": "products in 16 bits"})
    assert shown.count("products in 16 bits") == 1


def test_ratios_are_read_aloud(tmp_path):
    """A picture would hide the texts in it from screen readers."""
    timed = Tried(("bf16",), certificate=SAME, ratio=1.2, low=1.1, high=1.3)
    shown = page(tmp_path, timed, tried=[timed])
    ratios = shown.partition('<div class="ratios" ')[2]
    assert "1.20 [1.10, 1.30]" in ratios
    assert ratios.startswith('role="group" aria-label="Speed over')
    assert re.search(r"\.track \{.*print-color-adjust: exact", shown), (
        "or printers leave out the bars"
    )


def test_a_sentence_ends_right_after_a_ratio_without_a_verdict(tmp_path):
    patched = Tried(("bf16",), certificate=SAME, ratio=1.2, low=1.1, high=1.3)
    assert "the original: 1.20 [1.10, 1.30]. The same" in page(tmp_path, patched)
    patched.verdict = "FASTER"
    assert "the original: 1.20 [1.10, 1.30] FASTER. The same" in page(tmp_path, patched)


@pytest.mark.parametrize(
    ("word", "said"), [("same", "yes"), ("different", "NO"), ("undecided", "undecided")]
)
def test_only_a_diff_that_held_is_to_be_applied(word, said, tmp_path):
    shown = page(tmp_path, Tried(("bf16",), certificate=SAME | {"word": word}))
    assert ("git apply" in shown) == (word == "same")
    assert f"The same training? {said}: gradients differ" in shown


def test_the_brief_of_a_study_has_its_title_as_the_page_has(tmp_path):
    task = {"kind": "import", "factory": "docs.examples.my_training:build"}
    asked = {"name": "mine", "title": "Mine, *faster*", "variants": ["single"], "task": task}
    study, brief = tmp_path / "study.json", tmp_path / "report.md"
    write_result(study, Study.model_validate(asked).canonical_json())
    answer = tmp_path / "answer.json"
    found = Answer(task["factory"], status="failed", reason="no")
    write_result(answer, json.dumps(found.to_json()))
    page = tmp_path / "report.html"
    TunePageJob(study=study, answer=answer, output=page, brief=brief).run(None)
    assert "<h1>Mine, *faster*</h1>" in page.read_text()
    text = brief.read_text()
    assert text.startswith(
        "# Mine, \\*faster\\*\n\nThe training: `docs.examples.my_training:build`.\n"
    )
