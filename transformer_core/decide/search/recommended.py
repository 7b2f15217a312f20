"""The run spec that a machine is recommended, as a file."""

import yaml

from schemas.config.batching import FixedSize, PaddedRows
from schemas.config.model import UnpaddedTokens
from schemas.config.run_spec import RunSpec
from schemas.results.search import SearchResult


def pads(spec: RunSpec) -> bool:
    """Whether much of what ``spec`` computes is padding: it takes pairs of any lengths together,
    each in a row of its own, and computes the whole rows."""
    fixed = isinstance(spec.batching, FixedSize) and isinstance(spec.batching.rows, PaddedRows)
    return fixed and not isinstance(getattr(spec.model, "tokens", None), UnpaddedTokens)


def recommended_yaml(result: SearchResult) -> str:
    """The run spec as YAML, with what is known of it in comments."""
    lines = [
        "# The run spec that this machine is recommended, found by",
        f"#   {result.provenance.command}",
        f"# {' + '.join(result.parts) or result.baseline}: {result.reason}.",
    ]
    stage = next((s for s in result.waterfall if set(s.parts) == set(result.parts)), None)
    if result.parts and stage and stage.effect.ratio:
        ratio = stage.effect.ratio
        lines.append(
            f"# Throughput {ratio.median:.3f} x that of {result.baseline}, 95 % interval "
            f"{ratio.low:.3f} to {ratio.high:.3f}."
        )
    if result.certificate:
        lines.append(f"# Certificate: {result.certificate.status}, {result.certificate.reason}.")
    if pads(result.spec):
        lines += [
            "# Its batches are those of the study: a fixed number of pairs of any lengths, padded",
            "# to the longest. Where they need not be, batching: {kind: token_budget} pads little.",
        ]
    body = yaml.safe_dump(result.spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return "\n".join(lines) + "\n" + body
