"""What the numbers support in a few sentences, chosen here and worded in the template."""

from dataclasses import dataclass

from schemas.results import Certificate, Comparison, Translation, VariantResult
from transformer_core.report.inputs import Results


@dataclass(frozen=True)
class Summary:
    """The variants, sorted by what can be said of their throughput.

    Only variants that train the same model, against a baseline that does, are faster or slower, and
    only if the verdict says so.
    """

    ok: int
    faster: list[Comparison]
    """Verdict FASTER; largest ratio first, likewise below."""
    slower: list[Comparison]
    """Verdict SLOWER."""
    same: list[Comparison]
    """Verdict SAME: no difference that matters."""
    undecided: list[Comparison]
    """Verdict UNDECIDED: the interval is too wide for any of the others."""
    uncounted: list[Comparison]
    """Timed, but without a certificate on both sides: no speed-up of the same training."""
    not_equivalent: list[Certificate]
    """Meant to train the same model, and shown not to."""
    ended_otherwise: list[VariantResult]


@dataclass(frozen=True)
class Sample:
    """A sentence with the translations of all variants."""

    source: str
    reference: str
    hypotheses: list[tuple[str, list[str]]]
    """Translation, and the variants that gave it."""


def summarise(results: Results) -> Summary:
    """Sort the comparisons with the baseline."""
    compared = sorted(
        (item for item in results.comparisons.values() if item.speedup is not None),
        key=lambda item: -item.speedup.median if item.speedup else 0.0,
    )
    counted = [item for item in compared if item.counts]
    said = {
        verdict: [item for item in counted if item.verdict == verdict]
        for verdict in ("FASTER", "SLOWER", "SAME", "UNDECIDED")
    }
    return Summary(
        ok=len(results.variants) - len(results.ended_otherwise),
        faster=said["FASTER"],
        slower=said["SLOWER"],
        same=said["SAME"],
        undecided=said["UNDECIDED"],
        uncounted=[item for item in compared if not item.counts],
        not_equivalent=[
            item for item in results.certificates.values() if item.status == "not_equivalent"
        ],
        ended_otherwise=results.ended_otherwise,
    )


def translations(results: Results) -> list[Sample]:
    """The sampled test sentences; variants that agree on a translation stand together."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for result in results.ordered:
        for sample in result.evaluation.samples:
            by_text = found.setdefault(_key(sample), {})
            by_text.setdefault(sample.hypothesis, []).append(result.variant)
    return [
        Sample(source, reference, list(by_text.items()))
        for (source, reference), by_text in found.items()
    ]


def _key(sample: Translation) -> tuple[str, str]:
    return sample.source, sample.reference
