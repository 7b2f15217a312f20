"""Where the time of a user's step goes, as it is and as recommended, and the page that shows it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Interval
from schemas.results.own_training import (
    OwnCertificate,
    OwnProfiles,
    OwnTrainingResult,
    StepFacts,
    TriedTogether,
)
from transformer_core.common.tables import read_table
from transformer_core.machine.provenance import collect
from transformer_core.own_training.profiled.job import profiles
from transformer_core.report.own_training import own_page
from transformer_core.study.resolve import resolve

TASK = {
    "kind": "import",
    "factory": "docs.examples.my_training:build",
    "options": {"width": 24},
    "head": "head",
}
STUDY = Study.model_validate(
    {
        "name": "mine",
        "task": TASK,
        "machine": {"device": "cpu", "devices_per_node": 2, "threads": 1},
        "profiling": {"warmup_steps": 1, "steps": 2},
        "variants": ["single"],
    }
)
DIFF = "--- a/mine.py\n+++ b/mine.py\n-loss < 1\n+loss < 2\n"


def baseline(study: Study = STUDY) -> RunSpec:
    single = Variant.model_validate(
        {"change": {"parallel": {"kind": "single"}}, "equivalence": "tolerance", "summary": "One."}
    )
    return resolve(study, "single", {"single": single})


def tried(names: list[Any], median: float | None = None, **changes: Any) -> TriedTogether:
    speed = (
        Interval(median=median, low=median - 0.1, high=median + 0.1, samples=9) if median else None
    )
    made = TriedTogether(
        techniques=names,
        status="ok",
        reason=None,
        certificate=OwnCertificate(word="same", reason="equal", loss=1e-7, weights=2e-6),
        speed=speed,
        verdict="FASTER" if speed else None,
        peak_memory_bytes=300 << 20 if speed else None,
    )
    return made.model_copy(update=changes)


def result(**changes: Any) -> OwnTrainingResult:
    none = OwnCertificate(word="none", reason="there was no training to compare")
    missing: dict[str, Any] = {"status": "unsupported", "certificate": none}
    found = OwnTrainingResult(
        factory=str(TASK["factory"]),
        status="ok",
        reason=None,
        facts=StepFacts(
            parameters=31_415,
            optimizer="AdamW",
            optimizer_fused=False,
            clip_norm=1.0,
            loss_place=None,
            optimizer_place=None,
        ),
        own_loss=[5.5, 4.5],
        own_rounding=1e-6,
        wide_reason=None,
        tried=[
            tried(["bf16"], 1.6),
            tried(["chunked_loss"], 1.2),
            tried(["tf32"], **missing, reason="needs a <CUDA> device"),
            tried(["bf16", "chunked_loss"], 1.9, note="other processes took up to 89% of the CPUs"),
        ],
        recommended=["bf16", "chunked_loss"],
        own_peak_memory_bytes=400 << 20,
        words=["Give the optimizer `fused=True`."],
        provenance=collect(baseline(), "the command", datetime.now(UTC)),
    )
    return found.model_copy(update=changes)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, OwnProfiles]:
    folder = tmp_path_factory.mktemp("own") / "results" / "own_training"
    folder.mkdir(parents=True)
    return folder, profiles(STUDY, baseline(), result(), folder)


def test_phases_of_the_step_are_told_apart_before_and_after(
    profiled: tuple[Path, OwnProfiles],
) -> None:
    folder, found = profiled
    assert [profile.name for profile in found.profiles] == ["own", "recommended"]
    products = []
    for profile in found.profiles:
        assert (profile.status, profile.reason) == ("ok", None)
        assert profile.breakdown
        assert profile.breakdown.summary
        (device,) = profile.breakdown.devices
        assert len(device.steps) == STUDY.profiling.steps
        by_phase = {use.phase: use.busy_ns for use in profile.breakdown.summary.phases}
        for phase in ("forward", "loss", "backward", "optimizer"):
            assert by_phase[phase] > 0, phase
        assert any(use.path.endswith("head") for use in profile.breakdown.summary.layers)
        events = read_table(folder / "profiles" / profile.name / "events.parquet").to_pylist()
        in_loss = [event["operator_class"] for event in events if event["phase"] == "loss"]
        products.append(in_loss.count("contraction"))
    # The output layer is a part of the loss where that is computed in chunks.
    assert products[0] == 0 < products[1]


def write(folder: Path, found: OwnTrainingResult, made: OwnProfiles, diff: str = DIFF) -> str:
    (folder.parent / "study.json").write_text(STUDY.canonical_json())
    (folder / "results.json").write_text(found.model_dump_json())
    (folder / "profiles.json").write_text(made.model_dump_json())
    (folder / "changes.diff").write_text(diff)
    output = folder.parent / "report.html"
    assert own_page.main(["--results", str(folder.parent), "--output", str(output)]) == 0
    return output.read_text()


def test_the_page_begins_with_the_answer_and_ends_with_the_method(
    profiled: tuple[Path, OwnProfiles],
) -> None:
    page = write(profiled[0], result(), profiled[1])
    first, rest = page.split('<section id="summary"')
    for words in (
        "<code>bf16</code> + <code>chunked_loss</code>",
        "1.9",
        "other processes took up to 89% of the CPUs",
        "git apply results/own_training/changes.diff",
        "+loss &lt; 2",
        "Give the optimizer <code>fused=True</code>.",
        'id="figure-own_waterfall"',
        'href="#memory"',
    ):
        assert words in first, words
    for words in (
        "needs a &lt;CUDA&gt; device",
        'id="figure-own_partition"',
        "31,415",
        "같은 학습",
    ):
        assert words in rest, words
    assert page.count("<section") == page.count("</section>") == len(own_page.SECTIONS)


def test_a_step_that_nothing_makes_faster_is_kept(profiled: tuple[Path, OwnProfiles]) -> None:
    slow = tried(["bf16"], 0.5, verdict="SLOWER")
    made = profiled[1].model_copy(update={"profiles": profiled[1].profiles[:1]})
    page = write(profiled[0], result(tried=[slow], recommended=[], words=[]), made, "")
    assert "keep it as it is" in page
    assert "git apply" not in page


def test_a_step_that_cannot_run_says_why(profiled: tuple[Path, OwnProfiles]) -> None:
    ended = result(status="oom", reason="no <memory>", facts=None, tried=[], recommended=[])
    made = profiled[1].model_copy(update={"profiles": []})
    page = write(profiled[0], ended.model_copy(update={"own_loss": [], "words": []}), made, "")
    assert "no &lt;memory&gt;" in page
    assert "Nothing was profiled." in page
