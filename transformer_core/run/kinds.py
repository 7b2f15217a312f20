"""Which class an order is, by the ``kind`` that its JSON names.

A job is what a rule orders; its workers get orders of their own. The classes are named as texts, so
that nothing is imported that an order does not need.
"""

import importlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem, from_validation, nearest

CHANGES_NO_RESULT = True  # each rule names the programs that its orders start

JOBS = MappingProxyType(
    {
        "collectives": "transformer_core.measure.limits.collectives.job.Collectives",
        "compute_times": "transformer_core.measure.compute.job.ComputeTimesJob",
        "evaluation": "transformer_core.measure.evaluation.job.Evaluation",
        "largest_batch": "transformer_core.measure.memory.largest_batch.job.LargestBatchJob",
        "memory": "transformer_core.measure.memory.anatomy.job.MemoryAnatomy",
        "profile": "transformer_core.observe.profile_job.ProfileJob",
        "quality": "transformer_core.measure.quality.job.QualityJob",
        "self_test": "transformer_core.measure.turns.self_test_job.SelfTestJob",
        "short_run": "transformer_core.certify.short_run.ShortRun",
        "timed_run": "transformer_core.measure.alone.job.TimedRun",
        "turns": "transformer_core.measure.turns.job.TurnsJob",
    }
)
"""What rules order."""

ORDERS = MappingProxyType(
    {
        "anatomy": "transformer_core.measure.memory.anatomy.order.AnatomyOrder",
        "batch_trial": "transformer_core.measure.memory.largest_batch.order.BatchTrialOrder",
        "capture": "transformer_core.observe.profile_order.CaptureOrder",
        "collectives": "transformer_core.measure.limits.collectives.order.CollectivesOrder",
        "compute": "transformer_core.measure.compute.order.ComputeOrder",
        "evaluation": "transformer_core.measure.evaluation.order.EvaluationOrder",
        "own_profile": "transformer_core.own_training.order.OwnProfileOrder",
        "own_short": "transformer_core.own_training.order.OwnShortOrder",
        "own_turns": "transformer_core.own_training.order.OwnTurnsOrder",
        "race": "transformer_core.measure.turns.order.RaceOrder",
        "short_run": "transformer_core.certify.short_run.ShortRunOrder",
        "timed_run": "transformer_core.measure.alone.order.TimedRunOrder",
        "turns": "transformer_core.measure.turns.order.TurnsOrder",
    }
)
"""What jobs order of their workers."""


def class_of(kind: str, kinds: Mapping[str, str], where: str) -> Any:
    """The class of a kind; ConfigError, with the nearest names, for an unknown one. ``where`` says
    what named it."""
    if kind not in kinds:
        remedy = nearest(kind, kinds)
        raise ConfigError([ConfigProblem(where, "kind", kind, "is not known", remedy)])
    module, _, name = kinds[kind].rpartition(".")
    return getattr(importlib.import_module(module), name)


def parse(text: str, kinds: Mapping[str, str], where: str) -> Any:
    """The order in a JSON text; ConfigError, which names ``where`` it is from, if it is none."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        fields = str(error)
    if not isinstance(fields, dict):
        problem = ConfigProblem(where, WHOLE_FILE, text[:80], "is no JSON object", "give an order")
        raise ConfigError([problem])
    model = class_of(str(fields.pop("kind", "")), kinds, where)
    try:
        return model.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise from_validation(error, model, where) from None
