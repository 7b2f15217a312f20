"""The answer of a study, for the page, report.md and summary.json."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from schemas.config.run_spec import RunSpec
from schemas.results import (
    Answer,
    AnswerChange,
    AnswerClaim,
    AnswerCommands,
    AnswerQuality,
    AnswerRival,
    AnswerStage,
    AnswerTechnique,
    AnswerTime,
    AnswerTraining,
    AnswerVariant,
    CertificateStatus,
    Interval,
    Pair,
    Refinement,
    Stage,
    Verdict,
)
from schemas.results.common import BEST
from transformer_core.common.endings import reproducing_command
from transformer_core.common.records import read_record
from transformer_core.common.study_clock import CLOCK, read_clock
from transformer_core.decide.intervals import exact, quotient
from transformer_core.decide.study_results import StudyResults, throughputs
from transformer_core.report.kit.drawing import Drawing, RatioRow, ratio_waterfall
from transformer_core.report.kit.formats import combination
from transformer_core.report.kit.language import also, say
from transformer_core.report.kit.palette import REFERENCE, VARIANT, colour_of
from transformer_core.report.sections.variants import changed_settings, changes, fastest_first
from transformer_core.study.resolve import combine


@dataclass(frozen=True)
class Choice:
    """The fastest certified training: what the search found, or a variant that is even faster."""

    parts: list[str]
    spec: RunSpec
    speedup: Interval | None
    verdict: Verdict | None
    certificate: CertificateStatus | None
    reason: str
    searched: bool = True

    def bundle(self, results: StudyResults) -> list[str]:
        """The changes of a variant that is recommended as a whole; empty for a single change."""
        if self.searched and not results.search.bundle:
            return []
        found = changes(results, self.parts[0], results.study.baseline)
        return found if len(found) > 1 else []

    @property
    def path(self) -> str:
        if self.searched:
            return "results/recommended.yaml"
        return f"results/runs/{self.parts[0]}/spec.json"


def choose(results: StudyResults) -> tuple[Choice, list[AnswerRival]]:
    """The recommendation, and the certified variants that seem faster but are not recommended.

    A certified variant with a higher ratio becomes the recommendation, unless it lost a direct
    comparison, or its interval leaves open whether it beats the baseline at all.
    """
    found = results.search
    best = found.stage
    choice = Choice(
        parts=found.parts,
        spec=found.spec,
        speedup=best.effect.ratio if best else None,
        verdict=best.effect.verdict if best else None,
        certificate=found.certificate.status if found.parts and found.certificate else None,
        reason=found.reason,
    )
    least = choice.speedup.median if choice.speedup else 1.0
    rivals: list[AnswerRival] = []
    for row in fastest_first(results):
        if not row.counts or row.speedup is None:
            continue
        if row.speedup.median <= least:
            break
        if _is(results, row.variant, choice):
            continue
        direct, against = _direct(results, row.variant, row.speedup, choice)
        if direct is None and row.verdict == "FASTER":
            reason = "no combination that was searched is shown to be faster"
            spec, status = results.specs[row.variant], row.certificate
            own = Choice([row.variant], spec, row.speedup, row.verdict, status, reason, False)
            return own, rivals
        # If nothing beats the baseline, an undecided ratio is not a rival.
        if row.verdict == "FASTER" or choice.parts:
            rivals.append(
                AnswerRival(
                    variant=row.variant,
                    speedup=row.speedup,
                    verdict=row.verdict,
                    direct=direct,
                    against=against,
                )
            )
    return choice, rivals


def _direct(
    results: StudyResults, variant: str, speedup: Interval, choice: Choice
) -> tuple[Interval | None, str | None]:
    """The ratio of a variant in the same turns as the recommendation, if it was not faster there,
    and the name of the denominator. Without a recommendation, one in turns that contradict its own
    ``speedup``: turns too few to tell do not."""
    found, best = results.search, choice.speedup
    for stage in (*found.waterfall, *found.beyond, *found.left_out, *found.rivals):
        ratio = stage.effect.ratio
        if ratio and _stands_for(results, stage, variant):
            if best:
                slower = ratio.median <= best.median
            else:
                lower = stage.effect.verdict == "UNDECIDED" and ratio.high < speedup.median
                slower = lower or stage.effect.verdict in ("SAME", "SLOWER")
            if slower:
                return ratio, found.baseline
    if len(choice.parts) == 1 and _combined(results, choice.parts, choice.parts[0]):
        for names in ((variant, *choice.parts), (*choice.parts, variant)):
            pair = results.by_pair.get(Pair(*names))
            if pair and (ratio := pair.speedup):
                if pair.variant != variant:
                    ratio = quotient(exact(1.0, ratio.samples), ratio)
                if ratio.median <= 1:
                    return ratio, choice.parts[0]
    return None, None


def _stands_for(results: StudyResults, stage: Stage, variant: str) -> bool:
    """Whether a stage of the search trains exactly like a variant of the study."""
    return stage.parts == [variant] if stage.bundle else _combined(results, stage.parts, variant)


def _is(results: StudyResults, variant: str, choice: Choice) -> bool:
    """Whether a variant is the recommendation itself, measured in other turns."""
    return choice.spec.model_copy(update={"variant": variant}) == results.specs[variant]


def _combined(results: StudyResults, parts: Sequence[str], variant: str) -> bool:
    """Whether a variant equals the baseline with the own changes of ``parts``."""
    return combine(results.study, results.definitions, parts, variant) == results.specs[variant]


def read_answer(results: StudyResults) -> Answer:
    """The whole answer, from which the page, report.md and summary.json take their numbers."""
    study, found = results.study, results.search
    choice, rivals = choose(results)
    variants = list(_variants(results, choice))
    commits = {r.provenance.commit for v in results.ordered for r in v.repeats}
    trains = bool(choice.parts) or results.variants[study.baseline].status == "ok"
    return Answer(
        study=study.name,
        title=study.title,
        machine=results.devices,
        commit=commits.pop() if len(commits) == 1 else None,
        baseline=study.baseline,
        status=found.status if choice.searched else "found",
        reason=choice.reason,
        recommended=choice.parts,
        bundle=choice.bundle(results),
        searched=choice.searched and found.status != "not_searched",
        speedup=choice.speedup,
        verdict=choice.verdict,
        certificate=choice.certificate,
        settings=changed_settings(results.specs[study.baseline], choice.spec),
        stages=[
            AnswerStage(changes=s.changes, speedup=s.effect.ratio, verdict=s.effect.verdict)
            for s in found.waterfall
        ],
        techniques=techniques(results) if choice.searched else [],
        variants=variants,
        fastest_change=_fastest_change(results),
        rivals=rivals,
        claims=[
            AnswerClaim(claim=c.claim, statement=c.statement, verdict=c.verdict)
            for c in results.claims
        ],
        undecided=[v.variant for v in variants if v.counts and v.verdict == "UNDECIDED"],
        undecided_claims=[c.claim for c in results.claims if c.verdict == "UNDECIDED"],
        quality=_quality(results, choice.searched),
        time=_time(results),
        foreign_share=results.foreign_share,
        commands=AnswerCommands(
            reproduce=f"{reproducing_command('results/report.html')} --forceall",
            train=training_command(choice.spec, choice.path) if trains else None,
            path=choice.path,
        ),
    )


def _fastest_change(results: StudyResults) -> AnswerChange | None:
    """The certified single change to the baseline with the largest effect; if there is none, the
    fastest bundle."""
    baseline = results.study.baseline
    faster = [
        (changes(results, c.variant, baseline), c.variant, c.speedup)
        for c in results.comparisons.values()
        if c.counts and c.speedup and c.verdict == "FASTER"
    ]
    faster += [
        (stage.changes, stage.changes[0], stage.effect.ratio)
        for stage in results.search.waterfall
        if _is_technique(stage) and stage.effect.ratio and stage.effect.verdict == "FASTER"
    ]
    if not faster:
        return None
    changed, name, speedup = max(faster, key=lambda one: (len(one[0]) == 1, one[2].median))
    return AnswerChange(
        variant=name, reference=baseline, changes=changed, speedup=speedup, verdict="FASTER"
    )


def _is_technique(stage: Stage) -> bool:
    """Whether a stage of the search adds one technique to the baseline, and is certified."""
    return len(stage.parts) == 1 and not stage.bundle and not stage.uncertified


def techniques(results: StudyResults) -> list[AnswerTechnique]:
    """Each technique by itself and in combination with what the search found."""
    found = results.search
    if found.bundle:
        return []
    alone = {s.parts[0]: s.effect.ratio for s in found.waterfall if _is_technique(s)}
    names = [*found.parts, *(name for name in found.beside if name not in found.parts)]
    # A variant of another name may be the baseline with this technique: bf16_ddp over bf16.
    alone |= {
        name: comparison.speedup
        for name in names
        for variant, comparison in results.comparisons.items()
        if comparison.counts
        and (variant == name or name not in results.comparisons)
        and _combined(results, [name], variant)
    }
    return [
        AnswerTechnique(
            technique=name,
            taken=name in found.parts,
            alone=alone.get(name),
            beside=found.beside.get(name),
        )
        for name in names
    ]


def _quality(results: StudyResults, searched: bool) -> AnswerQuality | None:
    found = results.quality
    trained = [side for side in found.sides if side.looks] if found else []
    if found is None or not trained:
        return None
    return AnswerQuality(
        bleu=found.bleu,
        loss=found.loss,
        time_ratio=found.time_ratio if searched else None,
        trainings=[
            AnswerTraining(
                name=combination(side.parts, results.study.baseline)
                if side.name == BEST
                else side.parts[0],
                bleu=max((look.bleu for look in side.looks if look.bleu is not None), default=None),
                loss=min(look.loss for look in side.looks),
                steps=side.arrived.step if side.arrived else None,
                time_ratio=side.time_ratio,
            )
            for side in trained
        ],
    )


def _time(results: StudyResults) -> AnswerTime | None:
    """How the time limit was used, and what more time would settle."""
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


def _variants(results: StudyResults, choice: Choice) -> Iterator[AnswerVariant]:
    rates = throughputs(results)
    for name, result in results.variants.items():
        comparison, evaluation = results.comparisons.get(name), results.evaluations[name]
        unmeasured = comparison.note if comparison and comparison.speedup is None else ""
        yield AnswerVariant(
            variant=name,
            changes=changes(results, name, results.study.baseline),
            recommended=bool(choice.parts)
            and name != results.study.baseline
            and _is(results, name, choice),
            status=result.status,
            reason=result.reason or unmeasured or None,
            speedup=comparison.speedup if comparison else None,
            verdict=comparison.verdict if comparison else None,
            counts=comparison.counts if comparison else False,
            certificate=results.certificates[name].status,
            tokens_per_second=rates.get(name),
            peak_memory_bytes=result.peak_memory_bytes,
            bleu=evaluation.bleu,
            bits_per_byte=evaluation.texts.bits_per_byte if evaluation.texts else None,
        )


def training_command(spec: RunSpec, path: str = "results/recommended.yaml") -> str:
    """The command that trains a run spec, without measuring, on the study's corpus."""
    return (
        f"{spec.launch} transformer_core.training --spec {path}"
        f" --data results/data/{spec.corpus.name} --output trained"
    )


def _together(names: Sequence[str], baseline: str) -> str:
    """A short label for changes that were measured together."""
    return f"{len(names)} more" if len(names) > 2 else combination(names, baseline)


def draw_waterfall(results: StudyResults) -> Drawing:
    found = results.search
    groups = (
        (found.waterfall, "+", VARIANT),
        (found.beyond, "+", REFERENCE),
        (found.left_out, "without", colour_of("without")),
    )
    # The best combination, also if it is not recommended.
    built = set(found.waterfall[-1].parts) if found.waterfall else set[str]()
    another = bool(found.beyond) and not set(found.beyond[0].parts) > built
    shown = [
        RatioRow(
            f"{word} {_together(stage.changes, found.baseline)}{' *' if stage.uncertified else ''}",
            stage.effect.ratio,
            color=shade,
            adds=word == "+" and not (another and stage is found.beyond[0]),
        )
        for stages, word, shade in groups
        for stage in stages
        if stage.effect.ratio
    ]
    figure = ratio_waterfall(shown, found.baseline)
    text = say("Nothing to add up: %(reason)s.", reason=found.reason)
    if shown:
        text = say(
            "Read from top to bottom: each technique is added to those above it, and its bar "
            "runs from the speed before to the speed with it. Thin lines are intervals."
        )
        if another:
            text += also(
                "In grey, another combination is built up from the baseline; it seems slower and is "
                "not recommended."
            )
        elif found.beyond:
            text += also(
                "Techniques in grey were measured too, seem to slow training down, and are not "
                "recommended."
            )
        if found.left_out:
            text += also(
                "Below, in orange, is the best combination without each of its techniques."
            )
        if any(stage.uncertified for stages, _, _ in groups for stage in stages):
            text += also(
                "An asterisk marks a stage with kernels that no certificate covers: it is shown "
                "for orientation and does not count."
            )
    return Drawing(figure, say("Techniques together"), text)
