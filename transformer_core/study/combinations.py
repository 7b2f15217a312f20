"""Several techniques at once: run specs that take the changes of more than one variant."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from schemas.config.measurement import Bitwise, ClassOfEquivalence, Tolerance
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError
from transformer_core.study.compositions import contradiction, leaves, loosest
from transformer_core.study.resolve import resolve


def combine(
    study: Study, variants: Mapping[str, Variant], parts: Sequence[str], name: str
) -> RunSpec | None:
    """The baseline with the own changes of ``parts``, as a run spec called ``name``.

    Of each part the change to its own parent is taken, so that ``ddp_bucket_view`` is a step beyond
    ``ddp`` and not all of it. None where the changes do not fit together: two of them set the same
    field, or the result is no valid run spec.
    """
    fields = [dict(leaves(variants[part].change)) for part in parts]
    for first, second in combinations(fields, 2):
        if contradiction(first, second) is not None:
            return None
    chain = dict(variants)
    parent = study.baseline
    for number, part in enumerate(parts, 1):
        link = f"{name}_{number}" if number < len(parts) else name
        chain[link] = variants[part].model_copy(update={"parent": parent})
        parent = link
    if not parts:
        chain[name] = variants[study.baseline].model_copy(
            update={"parent": study.baseline, "change": {}}
        )
    try:
        return resolve(study, name, chain)
    except ConfigError:
        return None


def equivalence_of(variants: Mapping[str, Variant], parts: Sequence[str]) -> ClassOfEquivalence:
    """The equivalence class of a combination: that of its loosest part.

    A part that is to be bitwise equal to another variant leaves rounding to the others: tolerance.
    """
    found = loosest([variants[part].equivalence for part in parts])
    return Tolerance(kind="tolerance") if isinstance(found, Bitwise) else found


def exclusions(variants: Mapping[str, Variant], parts: Sequence[str]) -> dict[str, frozenset[str]]:
    """By part, the others that set one of its fields differently: they exclude each other."""
    fields = {part: dict(leaves(variants[part].change)) for part in parts}
    return {
        part: frozenset(o for o in parts if contradiction(fields[part], fields[o]) is not None)
        for part in parts
    }
