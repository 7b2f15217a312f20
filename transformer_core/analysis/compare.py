"""Every variant against the baseline.

    python -m transformer_core.analysis.compare --baseline single \
        --results runs/single/metrics.json runs/ddp/metrics.json \
        --certificates equivalence/single.json equivalence/ddp.json --output comparisons.json
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path

from schemas.errors import ConfigError, ConfigProblem, nearest
from schemas.results import (
    Certificate,
    CertificateStatus,
    Comparison,
    Effect,
    Interval,
    VariantResult,
    Verdict,
)
from transformer_core.analysis.files import read_record
from transformer_core.analysis.statistics import (
    FEWEST_SAMPLES,
    ratio_interval,
    spread_of_repeats,
)
from transformer_core.analysis.throughput import rates
from transformer_core.data.files import write_text

INPUT_WAIT_LIMIT = 0.05
"""Share of the time spent waiting for input above which a throughput says little about training."""


NO_SPEEDUP: dict[CertificateStatus, str] = {
    "not_equivalent": "{} does not train the same model: no speed-up",
    "different": "{} trains a different model by design: no speed-up of the same training",
}
"""What is said of a ratio with a side that has no certificate; otherwise its status."""


def compare(
    baseline: VariantResult,
    variant: VariantResult,
    certificates: Mapping[str, CertificateStatus],
) -> Comparison:
    """Throughput of ``variant`` over that of ``baseline``, in non-padding tokens per second.

    It counts as a speed-up only if both train the same model as the reference.
    """
    both = (baseline, variant)
    status = certificates[variant.variant]
    missing = [
        f"{result.variant} ended {result.status}"
        if result.status != "ok"
        else f"{result.variant} has no timed window"
        for result in both
        if result.status != "ok" or not any(rates(result.repeats, "tokens"))
    ]
    if missing:
        return Comparison(
            variant=variant.variant,
            reference=baseline.variant,
            effects=_effects(None, _sentence(missing)),
            certificate=status,
            counts=False,
            note=_sentence(missing),
        )
    speedup = ratio_interval(rates(variant.repeats, "tokens"), rates(baseline.repeats, "tokens"))
    return Comparison(
        variant=variant.variant,
        reference=baseline.variant,
        effects=_effects(speedup),
        certificate=status,
        counts=all(certificates[result.variant] == "equivalent" for result in both),
        note=_sentence(
            [
                *_about_equivalence(both, certificates),
                *_about_effect(both, speedup),
                *_about_runs(baseline, variant),
            ]
        ),
    )


def _effects(speedup: Interval | None, reason: str = "") -> list[Effect]:
    verdict: Verdict | None = None
    if speedup is not None:
        verdict = "UNDECIDED"
        if speedup.samples >= FEWEST_SAMPLES:
            verdict = "FASTER" if speedup.low > 1 else "SLOWER" if speedup.high < 1 else "UNDECIDED"
    return [
        Effect(quantity="throughput", ratio=speedup, verdict=verdict, reason=reason),
        Effect(quantity="peak_memory", ratio=None, verdict=None, reason="not compared"),
        Effect(quantity="traffic", ratio=None, verdict=None, reason="not compared"),
    ]


def compare_all(
    baseline: str,
    results: Sequence[VariantResult],
    certificates: Mapping[str, CertificateStatus],
) -> list[Comparison]:
    """Every other variant against ``baseline``, in the order of ``results``."""
    reference = next(result for result in results if result.variant == baseline)
    others = [result for result in results if result.variant != baseline]
    return [compare(reference, result, certificates) for result in others]


def differs(comparison: Comparison) -> bool:
    """Whether the interval leaves out 1 and is an interval, not the range of a few samples."""
    return comparison.verdict in ("FASTER", "SLOWER")


def _about_equivalence(
    both: Sequence[VariantResult], certificates: Mapping[str, CertificateStatus]
) -> Iterator[str]:
    for result in both:
        status = certificates[result.variant]
        if status != "equivalent":
            yield NO_SPEEDUP.get(status, f"{{}} has no certificate ({status}): no speed-up").format(
                result.variant
            )


def _about_effect(both: Sequence[VariantResult], speedup: Interval) -> Iterator[str]:
    unsettled = speedup.low <= 1 <= speedup.high
    if unsettled:
        yield "the interval holds 1: no difference is shown"
    for result in both:
        groups = rates(result.repeats, "tokens")
        windows = sum(map(len, groups))
        if windows < FEWEST_SAMPLES:
            yield (
                f"{result.variant} has fewer than {FEWEST_SAMPLES} timed windows: "
                "the range stands for the interval"
            )
        spread = spread_of_repeats(groups)
        if spread is None:
            yield f"{result.variant} has one timed repeat: variation between runs is not seen"
        elif not unsettled and log(spread) > abs(log(speedup.median)):
            yield (
                f"repeats of {result.variant} differ by a factor of {spread:.3f}, "
                "more than the variants do"
            )


def _about_runs(baseline: VariantResult, variant: VariantResult) -> Iterator[str]:
    for result in (baseline, variant):
        share = result.input_wait_share
        if share is not None and share > INPUT_WAIT_LIMIT:
            yield f"{result.variant} waited for input {share:.0%} of the time"
        resumed = [repeat.repeat for repeat in result.repeats if repeat.resumed_at]
        if resumed:
            yield f"{result.variant} was resumed in repeat {', '.join(map(str, resumed))}"
    labels = {"device": "{} against {}", "world_size": "{} against {} ranks"}
    labels["threads_per_rank"] = "{} against {} threads per rank"
    for field, label in labels.items():
        ours, theirs = _topology(variant, field), _topology(baseline, field)
        if ours and theirs and ours != theirs:
            yield label.format(ours, theirs)


def _topology(result: VariantResult, field: str) -> str:
    known = [repeat.topology for repeat in result.repeats if repeat.topology is not None]
    return ", ".join(sorted({str(getattr(topology, field)) for topology in known}))


def _sentence(notes: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(notes))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.analysis.compare",
        description="Compare the throughput of every variant with that of the baseline: ratio of "
        "medians with a 95 %% interval.",
    )
    parser.add_argument("--baseline", required=True, help="name of the baseline")
    parser.add_argument(
        "--results",
        required=True,
        nargs="+",
        metavar="FILE",
        help="metrics.json of every variant, the baseline included",
    )
    parser.add_argument(
        "--certificates",
        required=True,
        nargs="+",
        metavar="FILE",
        help="certificate of equivalence of every variant",
    )
    parser.add_argument("--output", required=True, type=Path, help="comparisons.json")
    options = parser.parse_args(arguments)
    try:
        results = [read_record(file, VariantResult) for file in options.results]
        read = [read_record(file, Certificate) for file in options.certificates]
        certificates = {certificate.variant: certificate.status for certificate in read}
        names = [result.variant for result in results]
        if options.baseline not in names:
            message = "is not among the results"
            remedy = nearest(options.baseline, names)
            raise ConfigError(
                [ConfigProblem("command line", "--baseline", options.baseline, message, remedy)]
            )
        if missing := [name for name in names if name not in certificates]:
            message = f"has no certificate of {missing[0]}"
            remedy = f"add results/equivalence/{missing[0]}.json"
            raise ConfigError(
                [ConfigProblem("command line", "--certificates", None, message, remedy)]
            )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    comparisons = compare_all(options.baseline, results, certificates)
    text = json.dumps([item.model_dump(mode="json") for item in comparisons], indent=1)
    write_text(options.output, text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
