"""The runs that compare the emulated link with a real one."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from schemas.base import kinds_of, merge
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.errors import from_validation

LINK_CHECKS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "small_buckets": {"parallel": {"bucket_mb": 0.25}},
    "fp16_compress": {"parallel": {"hook": {"kind": "compress", "dtype": "fp16"}}},
    "accumulation_sync": {
        "training": {"accumulation": {"micro_batches": 4, "synchronise": "every"}}
    },
    "accumulation_no_sync": {
        "training": {"accumulation": {"micro_batches": 4, "synchronise": "last"}}
    },
}
"""Changes to DistributedDataParallel with which the emulated link is checked."""


@dataclass(frozen=True)
class TrialSpecs:
    """The same work over both links."""

    change: str  # name of the change to DistributedDataParallel
    bandwidth: float  # bits per second
    real: RunSpec
    emulated: RunSpec


def link_trials(study: Study, file: str = "study") -> dict[str, TrialSpecs]:
    """Every change at every bandwidth that the study checks, by name; none if it checks none.

    Raises ConfigError for a study whose sections do not make a run spec.
    """
    if study.link_check is None:
        return {}
    shared = study.model_dump(mode="json", include=set(RunSpec.model_fields))
    trials = {}
    for bandwidth in study.link_check.bandwidths:
        for change, fields in LINK_CHECKS.items():
            real, emulated = (
                _spec(shared, fields, name, {"bandwidth": bandwidth, "emulate": emulate}, file)
                for name, emulate in (("real_link", False), ("emulated_link", True))
            )
            name = f"{change}_{bandwidth / 1e6:g}mbit"
            trials[name] = TrialSpecs(change, bandwidth, real, emulated)
    return trials


def _spec(
    shared: dict[str, Any], change: dict[str, Any], name: str, link: dict[str, Any], file: str
) -> RunSpec:
    machine = {"nodes": 2, "devices_per_node": 1, "link": link}
    data = merge(shared, {"parallel": {"kind": "ddp"}, "machine": machine})
    data = merge(data, change, kinds_of(RunSpec))
    try:
        return RunSpec.model_validate(data | {"variant": name})
    except ValidationError as error:
        raise from_validation(error, RunSpec, file) from None
