"""Batches and their order, loss, accumulation, optimizer, schedule, clipping, and resuming."""

import itertools
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.attacks.planted import changes
from tests.attacks.planted.fault import fault, faults_of, reduced
from tests.attacks.planted.planting import (
    Patch,
    around_step,
    batches,
    before_update,
    calling,
    each_micro,
    keep,
    put,
    result,
    swap,
)
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.data.tokenizing.special_tokens import EOS, PAD
from transformer_core.models import loss as loss_module
from transformer_core.models import objective
from transformer_core.models.transformer import EncoderDecoder
from transformer_core.parallel import hooks
from transformer_core.training import assemble, checkpoint, evaluation, loop, optimizer, precision


def again() -> Any:
    """Repeats the first batch."""
    first: list[GlobalBatch] = []

    def change(batch: GlobalBatch) -> GlobalBatch:
        if not first:
            first.append(batch)
        return replace(batch, micro_batches=first[0].micro_batches)

    return batches(change)()


fault("a global batch is used again", "data order", again)


@fault("one pair is left out", "data order", each_micro)
def without_a_pair(micro):
    labels = micro.target_output.clone()
    labels[0] = PAD
    return replace(micro, target_output=labels)


@fault("the end of a sentence has no loss", "loss", each_micro)
def without_ends(micro):
    labels = micro.target_output
    return replace(micro, target_output=labels.masked_fill(labels == EOS, PAD))


@fault("sources and targets are of other pairs", "data order", each_micro)
def shuffled(micro):
    return replace(micro, source=micro.source.roll(1, 0))


@fault("the decoder sees the token it predicts", "data order", each_micro)
def told(micro):
    return replace(micro, target_input=micro.target_output)


@fault("the order has another seed", "data order", Feed, "__init__", change=changes.TWO)
def _(real, self, store, batching, seed, *rest, **named):
    return real(self, store, batching, seed + (named.get("micro_batches") == 2), *rest, **named)


def padding_counts(real, x, labels, smoothing=0.0):
    labels = labels.flatten()
    return F.cross_entropy(x.flatten(0, 1), labels, label_smoothing=smoothing, reduction="sum")


accumulated = faults_of("accumulation", change=changes.TWO)
backward = faults_of("accumulation", precision.Precision, "backward", change=changes.TWO)
in_one_pass = faults_of("loss", change=changes.ONE_PASS)
whole_loss = faults_of("loss", objective.LOGITS_LOSSES, "whole")
tied = faults_of("tied weights")

whole_loss("no label smoothing", lambda real, x, y, s=0.0: real(x, y, 0.0))


@whole_loss("label smoothing off by a third")
@whole_loss("label smoothing off by a third under bf16", **changes.IN_BF16)
def _(real, x, y, s=0.0):
    return real(x, y, s * 2 / 3)


whole_loss("padding has a loss", padding_counts)
whole_loss("logits 1 % too large", lambda real, x, y, s=0.0: real(x * 1.01, y, s))


@fault(
    "the last chunk of the loss forgotten",
    "loss",
    loss_module,
    "checkpoint",
    change={"training": {"loss": {"kind": "chunked", "rows": 7}}},
)
def last_chunk_forgotten(real, of, hidden, labels, **named):
    """Chunks shorter than the others have no loss."""
    loss = real(of, hidden, labels, **named)
    return loss * float(len(labels) == 7)


@backward("only the last micro-batch counts", made=True)
def last_micro_batch_alone(real):
    count = itertools.count()
    return lambda self, loss: loss.backward() if next(count) % 2 else None


backward("gradients averaged over micro-batches", lambda real, self, loss: real(self, loss / 2))


@backward("the second micro-batch counts twice", made=True)
def second_micro_batch_twice(real):
    count = itertools.count()
    return lambda self, loss: (loss * (1 + next(count) % 2)).backward()


@tied("the output map has no gradient", EncoderDecoder, "decode")
def detached_output(real, self, *args, **named):
    named["head"] = lambda hidden, weight: F.linear(hidden, weight.detach())
    return real(self, *args, **named)


never = keep(lambda name, _: name.startswith("target_embedding"))
tied("the target embedding never learns", never, base=changes.UNTIED)


smoothed = calling(lambda real, logits, labels, smoothing: real(logits, labels, 0.1))
fault("validation smooths labels", "loss", swap(evaluation, "token_loss_sum", smoothed))


@in_one_pass("the loss in one pass gives the output map 1 % less", loss_module._OnePass, "backward")
def less_for_the_output(real, ctx, grad):
    d_hidden, d_output, *rest = real(ctx, grad)
    return d_hidden, d_output * 0.99, *rest


@in_one_pass(
    "the loss in one pass counts the first token of a chunk twice", loss_module, "_products"
)
def first_row_twice(real, hidden, output, d_logits, *rest):
    d_logits = d_logits.clone()
    d_logits[0] *= 2
    real(hidden, output, d_logits, *rest)


@accumulated(
    "micro-batches count alike, however many tokens they have", objective.Objective, "forward"
)
def each_micro_alike(real, self, source, given, labels, *rest):
    """Means of micro-batches, averaged: every token of a short one weighs more."""
    own = int((labels != 0).sum())
    shares = self.__dict__.setdefault("tokens_and_micro_batches", [0, 0])
    shares[0] += own
    shares[1] += 1
    return real(self, source, given, labels, *rest) * (shares[0] / shares[1] / own)


@tied("tied weights get the gradient of the output map twice", EncoderDecoder, "decode")
def doubled_output(real, self, *args, **named):
    named["head"] = lambda hidden, w: F.linear(hidden, w + w - w.detach())
    return real(self, *args, **named)


@tied("targets are embedded at another scale", EncoderDecoder, "_embed", made=True)
def targets_at_another_scale(real):
    factors = itertools.cycle([1.0, 1.01])  # the source comes first

    def embed(self: Any, *args: Any, **named: Any) -> Any:
        factor = next(factors)
        self.scale *= factor
        try:
            return real(self, *args, **named)
        finally:
            self.scale /= factor

    return embed


def other_arguments(name: str, **replaced: Any) -> None:
    """Adds the fault that Adam gets other arguments."""
    other = result(lambda found: found | replaced)
    fault(name, "optimizer", optimizer, "_adam_arguments", other, made=True)


rate = faults_of("schedule", loop, "learning_rate")
clipping = faults_of("clipping", precision.Precision, "step")

fault("every third update skipped", "optimizer", keep(lambda _, n: n % 3 == 0))


@fault("one tensor not given to the optimizer", "optimizer", assemble, "build_optimizer")
def without_the_first(real, spec, module, *more):
    return real(spec, nn.ParameterList([*module.parameters()][1:]), *more)


other_arguments("second moment decays faster", betas=(0.9, 0.9))
other_arguments("moments exchanged", betas=(0.98, 0.9))
other_arguments("eps a thousand times larger", eps=1e-3)
other_arguments("weight decay where none is asked for", weight_decay=0.1)


@fault("state lost at step 4", "optimizer", around_step)
def forget_state(trainer, _, number):
    if number == 4:
        trainer.optimizer.state.clear()


@fault("two updates of a gradient", "optimizer", precision.Precision, "update")
def updated_twice(real, *given):
    real(*given)
    return real(*given)


decaying = faults_of(
    "optimizer",
    assemble,
    "build_optimizer",
    base={"training": {"optimizer": {"kind": "adamw", "weight_decay": 0.1}}},
)


@decaying("decay in the gradient, not in the weights")
def decay_in_the_gradient(real, spec, module, *_):
    """L2 regularization in place of decoupled decay."""
    usual = {"betas": spec.betas, "eps": spec.eps, "weight_decay": spec.weight_decay}
    return torch.optim.Adam([{"params": [*module.parameters()]}], lr=0.0, **usual)


def vectors_apart(made, **settings):
    """An optimizer with other settings for vectors."""
    group = made.param_groups[0]
    flat = [p for p in group["params"] if p.dim() < 2]
    group["params"] = [p for p in group["params"] if p.dim() > 1]
    made.add_param_group({"params": flat, **settings})
    return made


@decaying("vectors do not decay")
def without_decay_of_vectors(real, spec, module, *more):
    return vectors_apart(real(spec, module, *more), weight_decay=0.0)


@fault("rates of two digits", "schedule", loop, "learning_rate", base=changes.schedule("cosine"))
def rounded_rate(real, *args):
    return float(f"{real(*args):.1e}")


def other_step(name: str, base: str, change: Any) -> None:
    """Adds the fault that a step has the rate of another, in a study with the schedule ``base``."""
    rate(name, lambda real, s, n, *rest: real(s, change(n), *rest), base=changes.schedule(base))


fault(
    "only biases learn in the last step", "optimizer", keep(lambda p, n: n == 6 and "weight" in p)
)
rate("rate 2 % too large", lambda real, *given: 1.02 * real(*given))
other_step("warm-up one step early", "linear", lambda n: n + 1)
other_step("no decay after the warm-up", "cosine", lambda n: min(n, 3))
other_step("the rate of the step before", "cosine", lambda n: max(1, n - 1))
clipping("gradients are not clipped", lambda real, *given: real(*given[:3], 0.0))
clipping(
    "gradients are clipped at half the norm", lambda real, *given: real(*given[:3], given[3] / 2)
)


@fault("every element of a gradient is clipped", "clipping", before_update)
def clip_elements(parameters):
    for p in parameters:
        if p.grad is not None:
            p.grad.clamp_(-0.02, 0.02)


@clipping("gradients are clipped before they are unscaled", **changes.IN_FP16)
def clipped_before_unscaling(real, self, optim, parameters, clip):
    parameters = list(parameters)
    nn.utils.clip_grad_norm_(parameters, clip)
    return real(self, optim, parameters, clip)


@fault("every tensor clipped by itself", "clipping", before_update)
def clip_each(parameters):
    for p in parameters:
        nn.utils.clip_grad_norm_([p], 0.1)


rate(
    "the rate of a wider model",
    lambda real, s, n, total, d: real(s, n, total, 2 * d),
    base={"training": {"schedule": {"kind": "noam", "warmup": 3, "factor": 1.0}}},
)


@fault("one row of the embedding never learns", "optimizer", around_step)
def row_back(trainer, before, _):
    for (name, p), old in zip(trainer.model.named_parameters(), before, strict=True):
        if name.endswith("embedding.weight"):
            p[4] = old[4]


fault(
    "velocity lost at every third step",
    "optimizer",
    around_step(lambda t, _, n: t.optimizer.state.clear() if n % 3 == 0 else None),
    base={"training": {"optimizer": {"kind": "sgd"}}},
)


def lost(name: str) -> Patch:
    """Resuming does not restore everything: this function of a checkpoint does nothing."""
    return put(checkpoint, name, lambda *_: None)


def after_loading(change: Any) -> Patch:
    """Calls change(state of a tensor) after the optimizer's state was loaded."""

    def load(real: Any, setup: Any, *given: Any) -> None:
        real(setup, *given)
        with torch.no_grad():
            for state in setup.optimizer.state.values():
                change(state)

    return swap(checkpoint, "_load_optimizer", calling(load))


resumed = faults_of("resuming")
resumed("resumed without the moments", lost("_load_optimizer"))
resumed("resumed without the weights", lost("_load_model"))
resumed("resumed with other random numbers", lost("_load_random_state"))
resumed("resumed with the step count at 0", after_loading(lambda state: state["step"].zero_()))
resumed(
    "resumed with moments of 8 bits",
    after_loading(lambda state: state["exp_avg"].copy_(state["exp_avg"].bfloat16())),
)
resumed(
    "resumed with the moments exchanged",
    after_loading(lambda state: state["exp_avg_sq"].copy_(state["exp_avg"].square())),
)
in_fp16 = put(precision.ScaledAutocast, "load", lambda *_: None)
reduced("resumed without the loss scale", in_fp16, change=changes.FP16)
resumed(
    "resumed without the memory of PowerSGD",
    put(hooks.PowerSgd, "remember", lambda *_: None),
    ranks=2,
    **changes.BY_POWER,
)
