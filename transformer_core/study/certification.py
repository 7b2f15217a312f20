"""The short trainings behind the equivalence certificates of a study."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.config.measurement import (
    LOOKS,
    REFERENCE,
    Bitwise,
    Different,
    Measurement,
    Statistical,
)
from schemas.config.model import DecoderOnly, ReferenceAttention, SeparateQkv, Transformer
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.training import Accumulation, AdamW, Constant, Fp16, Fp32, WholeLoss
from schemas.config.variants import Variant
from transformer_core.study.resolve import spec_of
from transformer_core.study.variants import with_compositions

NEXT_TO_NONE = 1e-9
"""A dropout rate that drops nothing. A rate of 0 would select other kernels than the timed ones:
torch's fused attention on CPUs has no dropout."""

NO_OVERFLOW = 1024.0
"""A loss scale at which 16-bit gradients do not overflow in the first steps."""


@dataclass(frozen=True)
class ShortRun:
    """A training of a few steps, with one or more seeds."""

    spec: RunSpec
    seeds: int  # maximum number of seeds
    first_look: int
    """Seeds after which the final losses are first compared with the reference's; 0 if they are not
    compared."""
    margin: float  # margin of that comparison
    timed: RunSpec  # run spec of the timed run


def compared_with(variant: Variant) -> str | None:
    """Name of the run that a variant must match; null if no certificate is possible."""
    equivalence = variant.equivalence
    if isinstance(equivalence, Bitwise):
        return equivalence.against
    return None if isinstance(equivalence, Different) else REFERENCE


def unchecked(spec: RunSpec) -> str | None:
    """Why the steps of a run cannot be checked by themselves, without a reference; None if they can."""
    if spec.parallel.apart:
        return "its replicas train apart"
    if spec.training.optimizer.state.averages:
        return "its optimizer validates an average of the weights"
    return None


def short_runs(
    study: Study,
    variants: Mapping[str, Variant],
    specs: Mapping[str, RunSpec],
    study_file: str = "study",
) -> dict[str, ShortRun]:
    """The runs that the certificates of ``specs`` need, by name.

    Raises ConfigError if a variant outside ``specs`` that is compared with does not resolve.
    """
    variants = with_compositions(variants, specs, study_file)
    seeds: dict[str, int] = {}
    looks: dict[str, Statistical] = {}
    for name in specs:
        other, equivalence = compared_with(variants[name]), variants[name].equivalence
        if other is not None:
            needed = 1
            if isinstance(equivalence, Statistical):
                needed = LOOKS * equivalence.seeds
                looks[name] = equivalence
            for run in (name, other):
                seeds[run] = max(seeds.get(run, 1), needed)
        elif unchecked(specs[name]) is None:
            seeds.setdefault(name, 1)

    def timed_spec(name: str) -> RunSpec:
        if name == REFERENCE:
            return reference_spec(study)
        return specs.get(name) or spec_of(study, name, variants, study_file)

    runs = {}
    for name, needed in seeds.items():
        look = looks.get(name)
        timed = timed_spec(name)
        other = None if name == REFERENCE else compared_with(variants[name])
        # Without another training to equal, its own dropout is the right one.
        expected = timed if other is None else timed_spec(other)
        runs[name] = ShortRun(
            spec=short_spec(study, timed, expected.model.dropout),
            seeds=needed,
            first_look=look.seeds if look else 0,
            margin=look.loss if look else 0.0,
            timed=timed,
        )
    return runs


def reference_spec(study: Study) -> RunSpec:
    """The plainest form of the study's model: see :data:`REFERENCE`."""
    model, training = study.model, study.training
    if isinstance(model, Transformer | DecoderOnly):
        plain: dict[str, Any] = {
            "attention": ReferenceAttention(kind="reference"),
            "checkpoint": "none",
        }
        # Muon takes matrices as they are: joined ones are updated in another way than their parts.
        if training.optimizer.rule is not None:
            plain["qkv"] = SeparateQkv(kind="separate")
        model = model.model_copy(update=plain)
    optimizer = training.optimizer
    if isinstance(optimizer, AdamW):
        optimizer = optimizer.model_copy(update={"fused": False})
    training = training.model_copy(
        update={
            "precision": Fp32(),
            "optimizer": optimizer,
            "accumulation": Accumulation(),
            # Another loss of the study's baseline may be another function, but is plain.
            "loss": training.loss if training.loss.smooths_other_tokens_only else WholeLoss(),
        }
    )
    shared: dict[str, Any] = {
        name: getattr(study, name)
        for name in RunSpec.model_fields
        if name in Study.model_fields and name not in ("model", "training")
    }
    return RunSpec(variant=REFERENCE, model=model, training=training, **shared)


def short_spec(study: Study, spec: RunSpec, dropout: float | None = None) -> RunSpec:
    """``spec`` as a short training, with a dropout that drops nothing and a constant learning rate.

    A variant's own schedule is kept, and a dropout other than ``dropout``, by default the study's: it
    must not look equal to what it is compared with. Settings of timing are reset.
    """
    settings, model = study.certificate, spec.model
    if model.dropout == (study.model.dropout if dropout is None else dropout):
        model = model.model_copy(update={"dropout": min(model.dropout, NEXT_TO_NONE)})
    training = spec.training.model_copy(
        update={"steps": settings.steps, "validate_every": 0, "checkpoint_every": 0}
    )
    if training.schedule == study.training.schedule:
        constant = Constant(kind="constant", peak=settings.learning_rate)
        training = training.model_copy(update={"schedule": constant})
    if isinstance(training.precision, Fp16):
        # With so few steps, a rightly skipped one would shift their course; skipping is tested apart.
        scale = min(training.precision.initial_scale, NO_OVERFLOW)
        precision = training.precision.model_copy(update={"initial_scale": scale})
        training = training.model_copy(update={"precision": precision})
    # Plain gradients would certify nothing.
    return spec.compressing_at_once().model_copy(
        update={
            "model": model,
            "training": training,
            "measurement": Measurement(),
        }
    )
