"""Steps of the user's training: those of the script to the last bit, and what techniques change."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from docs.examples import byte_gpt
from schemas.config.own_training import ImportedTask
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from transformer_core.own_training.own_step import (
    build_trainer,
    divided,
    fused,
    moved,
    named_layers,
    without_dropout,
)
from transformer_core.own_training.techniques import plain_spec, with_techniques
from transformer_core.parallel.topology import this_process


def own(**task: Any) -> RunSpec:
    section = {"kind": "import", "factory": "docs.examples.my_training:build"}
    options = {"width": 24, "file": byte_gpt.__file__}
    spec = RunSpec.model_validate(
        {
            "variant": "single",
            "machine": {"device": "cpu"},
            "task": section | {"options": options, "head": "head"} | task,
        }
    )
    assert isinstance(spec.task, ImportedTask)
    return plain_spec(spec, spec.task)


def trained(spec: RunSpec, steps: int = 3, **options: bool) -> dict[str, Tensor]:
    trainer = build_trainer(spec, this_process(spec.machine, 1), **options)
    for _ in range(steps):
        trainer.step(trainer.batch())
    found = trainer.parts.module.state_dict()
    return {n.replace("head.head.", "head."): t.float() for n, t in found.items()}


def by_hand(steps: int = 3) -> dict[str, Tensor]:
    """The loop of the script."""
    torch.manual_seed(1)
    model = byte_gpt.GPT(width=24)
    optimizer = byte_gpt.optimizer_of(model.parameters())
    data = byte_gpt.batches(byte_gpt.read(byte_gpt.__file__), seed=1)
    for _ in range(steps):
        loss = byte_gpt.loss_of(model, next(data))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.state_dict()


def test_the_own_step_is_that_of_the_script_to_the_last_bit() -> None:
    found, expected = trained(own()), by_hand()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["fused_optimizer", "chunked_loss", "accumulation_2"])
def test_techniques_with_the_same_sums(name: Any) -> None:
    found = trained(with_techniques(own(), 1, [name]))
    torch.testing.assert_close(found, by_hand(), rtol=1e-3, atol=1e-5)


def test_16_bits_and_64_bits_are_near() -> None:
    expected = by_hand()
    wide = trained(own(), wide=True)
    torch.testing.assert_close(wide, expected, rtol=1e-3, atol=1e-5)
    coarse = trained(with_techniques(own(), 1, ["bf16"]))
    torch.testing.assert_close(coarse, expected, rtol=0.1, atol=2e-3)
    assert any(not torch.equal(coarse[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["bf16", "fp16"], "bf16 and fp16 exclude each other"),
        (["ddp"], "needs several devices"),
        (["chunked_loss", "fsdp"], "after FSDP's forward"),
    ],
)
def test_what_does_not_go_together(names: Any, message: str) -> None:
    devices = 2 if "fsdp" in names else 1
    with pytest.raises(Unsupported, match=message):
        with_techniques(own(), devices, names)


def test_what_is_applied_is_in_the_baseline() -> None:
    spec = own(applied=["bf16", "fused_optimizer"])
    assert (spec.variant, spec.training.precision.kind) == ("own", "bf16")
    more = with_techniques(spec, 1, ["chunked_loss"])
    assert more.training.precision.kind == "bf16"
    assert isinstance(more.task, ImportedTask)
    assert more.task.applied == ("bf16", "fused_optimizer", "chunked_loss")
    with pytest.raises(Unsupported, match="already has it"):
        with_techniques(spec, 1, ["bf16"])


def test_a_chunked_loss_needs_the_name_of_the_head() -> None:
    with pytest.raises(Unsupported, match=r"task\.head"):
        with_techniques(own(head=None), 1, ["chunked_loss"])


def test_optimizers_without_a_fused_kernel() -> None:
    weights = [nn.Parameter(torch.zeros(2))]
    assert fused(torch.optim.SGD(weights, lr=0.5)).param_groups[0]["lr"] == 0.5
    with pytest.raises(Unsupported, match="a Rprop has no fused kernel"):
        fused(torch.optim.Rprop(weights))
    with pytest.raises(Unsupported, match="is already fused"):
        fused(torch.optim.AdamW(weights, fused=True))


def test_batches_of_any_shape() -> None:
    batch = {"x": torch.arange(4), "more": (torch.ones(4, 2), "words", torch.tensor(3))}
    first, second = divided(batch, 2)
    assert first["x"].tolist() == [0, 1]
    assert second["more"][0].shape == (2, 2)
    assert second["more"][1:] == ("words", torch.tensor(3))
    assert moved(batch, torch.device("cpu"), wide=True)["more"][0].dtype == torch.float64
    with pytest.raises(Unsupported, match="4 samples of a batch do not make 3"):
        list(divided(batch, 3))


def test_layers_by_name_and_dropout() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.MultiheadAttention(4, 1, dropout=0.5))
    without_dropout(model)
    assert (model[0].p, model[1].dropout) == (0.0, 0.0)
    assert list(named_layers("Dropout")(model)) == [model[0]]
    with pytest.raises(Unsupported, match=r"task\.layers = Blok"):
        list(named_layers("Blok")(model))
