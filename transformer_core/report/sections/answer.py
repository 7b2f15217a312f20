"""The answer, as the page, report.md and summary.json give it."""

import time
from collections.abc import Iterator
from typing import Any

from schemas.config.run_spec import RunSpec
from schemas.results import (
    Answer,
    AnswerClaim,
    AnswerCommands,
    AnswerQuality,
    AnswerStage,
    AnswerTime,
    AnswerVariant,
    Refinement,
    Stage,
)
from transformer_core.common.records import read_record
from transformer_core.common.reproducing import reproducing_command
from transformer_core.common.study_clock import CLOCK, read_clock
from transformer_core.decide.study_results import StudyResults
from transformer_core.decide.turn_throughput import throughputs
from transformer_core.report.kit.drawing import Drawing, RatioRow, ratio_waterfall
from transformer_core.report.kit.language import say
from transformer_core.report.kit.palette import REFERENCE, VARIANT, colour_of
from transformer_core.report.sections.tried import summarise


def read_answer(results: StudyResults) -> Answer:
    """The whole answer; nothing in it is computed a second time elsewhere."""
    study, found = results.study, results.search
    best = best_stage(results)
    variants = list(_variants(results))
    commits = {r.provenance.commit for v in results.ordered for r in v.repeats}
    return Answer(
        study=study.name,
        title=study.title,
        machine=", ".join(gpu.name for gpu in results.hardware.gpus) or results.hardware.cpu,
        commit=commits.pop() if len(commits) == 1 else None,
        baseline=study.baseline,
        status=found.status,
        reason=found.reason,
        recommended=found.parts,
        speedup=best.effect.ratio if best else None,
        verdict=best.effect.verdict if best else None,
        certificate=found.certificate.status if found.parts and found.certificate else None,
        settings=changed_settings(results.specs[study.baseline], found.spec),
        stages=[
            AnswerStage(change=s.change, speedup=s.effect.ratio, verdict=s.effect.verdict)
            for s in found.waterfall
        ],
        variants=variants,
        claims=[
            AnswerClaim(claim=c.claim, statement=c.statement, verdict=c.verdict)
            for c in results.claims
        ],
        undecided=[v.variant for v in variants if v.counts and v.verdict == "UNDECIDED"],
        undecided_claims=[c.claim for c in results.claims if c.verdict == "UNDECIDED"],
        quality=_quality(results),
        time=_time(results),
        commands=AnswerCommands(
            reproduce=reproducing_command("results/report.html"),
            train=training_command(found.spec),
        ),
    )


def _quality(results: StudyResults) -> AnswerQuality | None:
    found = results.quality
    if found is None or found.time_ratio is None:
        return None
    return AnswerQuality(bleu=found.bleu, time_ratio=found.time_ratio)


def _time(results: StudyResults) -> AnswerTime | None:
    if results.study.time is None:
        return None
    found = read_record(results.folder / "refinement.json", Refinement)
    spent = read_clock(results.folder / CLOCK.name).spent(time.time())
    taken = max(spent, found.ended_at_seconds)
    return AnswerTime(
        asked_seconds=found.asked_seconds,
        taken_seconds=taken,
        unsettled=found.unsettled,
        next_seconds=found.next_seconds(taken),
    )


def best_stage(results: StudyResults) -> Stage | None:
    """The stage of the final comparison that is recommended; none for the baseline."""
    found = results.search
    same = (stage for stage in found.waterfall if set(stage.parts) == set(found.parts))
    return next(same, None) if found.parts else None


def _variants(results: StudyResults) -> Iterator[AnswerVariant]:
    rates = throughputs(results)
    for name, result in results.variants.items():
        comparison, quality = results.comparisons.get(name), result.evaluation.texts
        yield AnswerVariant(
            variant=name,
            status=result.status,
            reason=result.reason,
            speedup=comparison.speedup if comparison else None,
            verdict=comparison.verdict if comparison else None,
            counts=comparison.counts if comparison else False,
            certificate=results.certificates[name].status,
            tokens_per_second=rates.get(name),
            peak_memory_bytes=result.peak_memory_bytes,
            bleu=result.evaluation.bleu,
            bits_per_byte=quality.bits_per_byte if quality else None,
        )


def changed_settings(baseline: RunSpec, recommended: RunSpec) -> dict[str, Any]:
    """Settings of the second that differ from the first, nested as in a run spec; those of a
    choice with its kind."""
    found = _differences(baseline.model_dump(mode="json"), recommended.model_dump(mode="json"))
    found.pop("variant", None)
    return found


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in after.items():
        other = before.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            if inner := _differences(other, value):
                found[name] = inner
        elif value != other:
            found[name] = value
    return {"kind": after["kind"]} | found if found and "kind" in after else found


def training_command(spec: RunSpec) -> str:
    """Trains what is recommended, without measuring, on the corpus of the study."""
    program = "python -m"
    if spec.world_size > 1:
        hosts = "--standalone" if spec.machine.nodes == 1 else f"--nnodes={spec.machine.nodes}"
        program = f"torchrun {hosts} --nproc-per-node={spec.processes_per_node} -m"
    return (
        f"{program} transformer_core.training --spec results/recommended.yaml"
        f" --data results/data/{spec.corpus.name} --output trained"
    )


def context(results: StudyResults) -> dict[str, Any]:
    """The answer, the comparisons that it names, and how it was searched for."""
    summary = summarise(results)
    return {
        "answer": read_answer(results),
        "search": results.search,
        "faster": summary.faster,
        "undecided": summary.undecided,
    }


def draw_waterfall(results: StudyResults) -> Drawing:
    """From the baseline to the best combination, beyond it, and without each of its parts."""
    found = results.search
    groups = (
        (found.waterfall, "+", VARIANT),
        (found.beyond, "+", REFERENCE),
        (found.left_out, "without", colour_of("without")),
    )
    shown = [
        RatioRow(
            f"{word} {stage.change}{' *' if stage.uncertified else ''}",
            stage.effect.ratio,
            color=shade,
            adds=word == "+",
        )
        for stages, word, shade in groups
        for stage in stages
        if stage.effect.ratio
    ]
    figure = ratio_waterfall(shown, found.baseline)
    if not shown:
        return Drawing(
            figure,
            say("Techniques together"),
            say("Nothing to add up: %(reason)s.", reason=found.reason),
        )
    return Drawing(
        figure,
        say("Techniques together"),
        say(
            "Read it from top to bottom: each technique is added to those above it, and its bar "
            "leads from the speed before to the speed with it. What is grey was measured too, "
            "seems to cost, and is not recommended. Below, in orange, is the best combination "
            "without each of its techniques. Black lines are intervals. An asterisk marks a stage "
            "with kernels that no certificate names: it shows the way, and does not count."
        ),
    )
