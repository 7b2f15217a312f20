"""The scale of a batch: variants that sweep the batch size of any study."""

from pathlib import Path
from typing import Any

import pytest

from schemas.config.data import FixedSize, PackedRows, PaddedRows, TokenBudget
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError
from tests.refusals import problem_of
from transformer_core.study.resolve import resolve
from transformer_core.study.variants import read_variants

ROOT = Path(__file__).resolve().parents[2]
DDP = {"parallel": {"kind": "ddp"}}
FOUR = {"devices_per_node": 4}


def study(batching: dict[str, Any], **sections: Any) -> Study:
    return Study.model_validate({"name": "s", "variants": ["v"], "batching": batching} | sections)


def scaled(scale: float, change: dict[str, Any] | None = None) -> dict[str, Variant]:
    change = (change or {}) | {"batching": {"scale": scale}}
    return {"v": Variant(change=change, equivalence="statistical", summary="Scaled.")}


@pytest.mark.parametrize(
    ("size", "scale", "expected"),
    [(64, 1.0, 64), (64, 0.5, 32), (64, 4.0, 256), (10, 0.25, 2), (3, 0.9, 3), (1, 0.1, 1)],
)
def test_size_times_scale_to_the_nearest_whole_number(size, scale, expected):
    assert FixedSize(kind="fixed_size", pairs=size, scale=scale).scaled_pairs == expected
    assert TokenBudget(tokens=size, scale=scale).scaled_tokens == expected


@pytest.mark.parametrize("kind", ["fixed_size", "token_budget"])
def test_variants_scale_the_batches_of_any_study(kind):
    size = {"fixed_size": "pairs", "token_budget": "tokens"}[kind]
    variants = read_variants(ROOT / "config/variants.yaml").variants
    base = study({"kind": kind, size: 9_000})
    sizes = {}
    for name in ("batch_quarter", "batch_half", "single", "batch_double", "batch_quadruple"):
        batching = resolve(base, name, variants).batching
        assert batching.kind == kind
        sizes[name] = getattr(batching, f"scaled_{size}")
    assert list(sizes.values()) == [2_250, 4_500, 9_000, 18_000, 36_000]


@pytest.mark.parametrize(
    ("base", "variants", "message", "remedy", "other"),
    [
        (
            study({"kind": "fixed_size", "pairs": 10}, machine=FOUR),
            scaled(0.3, DDP),
            "makes global batches of 3 pairs",
            "use at least 0.4, or at least 14 pairs",
            "fewer devices",
        ),
        (
            study({"kind": "token_budget", "tokens": 1_000}, filter={"max_tokens": 49}),
            scaled(0.05),
            "makes global batches of 50 tokens",
            "use at least 0.1, or at least 2000 tokens",
            "a smaller filter.max_tokens",
        ),
    ],
)
def test_a_scale_that_leaves_a_device_without_work_is_refused(
    base, variants, message, remedy, other
):
    problem = problem_of(resolve, base, "v", variants, "study.yaml")
    assert (problem.file, problem.field) == ("config/variants.yaml", "v.change.batching.scale")
    assert problem.value == variants["v"].change["batching"]["scale"]
    assert message in problem.message
    assert problem.remedy.startswith(remedy)
    assert other in problem.remedy


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_scale_is_positive_and_the_remedies_are_sufficient(scale):
    for pairs, least in ((10, 0.4), (14, 0.3)):
        base = study({"kind": "fixed_size", "pairs": pairs}, machine=FOUR)
        resolve(base, "v", scaled(least, DDP))
    with pytest.raises(ConfigError, match="at least"):
        resolve(study({"kind": "token_budget"}), "v", scaled(scale))


PACKED = {"batching": {"rows": {"kind": "packed", "tokens": 64}}}


def laid_out(change: dict[str, Any]) -> dict[str, Variant]:
    return {"v": Variant(change=change, equivalence="tolerance", summary="Packed.")}


@pytest.mark.parametrize("batching", [{"kind": "fixed_size", "pairs": 9}, {"tokens": 900}])
def test_packed_rows_change_no_global_batch(batching):
    plain = study({"kind": "token_budget"} | batching)
    found = resolve(plain, "v", laid_out(PACKED)).batching
    assert found.rows == PackedRows(kind="packed", tokens=64)
    assert found.model_copy(update={"rows": PaddedRows()}) == plain.batching


@pytest.mark.parametrize("kind", ["torch_nn", "huggingface", "import"])
def test_packed_rows_need_a_model_that_supports_them(kind):
    model = {"kind": kind} | ({"factory": "m:f"} if kind == "import" else {})
    base = study({"kind": "token_budget"}, model=model)
    problem = problem_of(resolve, base, "v", laid_out(PACKED), "study.yaml")
    assert (problem.field, problem.value) == ("v.change.batching.rows.kind", "packed")
    assert f"one of kind {kind} does not" in problem.message
    assert problem.remedy == "use rows: {kind: padded}, or model: {kind: transformer}"
