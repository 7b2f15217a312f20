"""Step times of more devices than there are, held against every run of several processes.

    python -m transformer_core.decide.scaling.project --compute compute.json \
        --specs runs/*/spec.json --results runs/*/metrics.json \
        --collectives machine/collectives.parquet --settings '{"devices": 1024}' \
        --output projection.json
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from schemas.config.projection import Projecting
from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError, ConfigProblem
from schemas.results import ComputeRecord, MeasuredLink, Projection, VariantResult
from transformer_core.common.endings import program
from transformer_core.common.records import read_record
from transformer_core.common.seals import write_sealed
from transformer_core.decide.scaling.measured_link import MEASURED, as_model, measured_link
from transformer_core.decide.scaling.original_machine import worked_example
from transformer_core.decide.scaling.projected_curves import best_buckets, curves
from transformer_core.decide.scaling.projection_checks import checks
from transformer_core.decide.scaling.step_model import Compute


def project(
    record: ComputeRecord,
    specs: Mapping[str, RunSpec],
    results: Mapping[str, VariantResult],
    link: MeasuredLink | None,
    settings: Projecting,
) -> Projection:
    """Curves, buckets and checks; without a measured device there are only the reasons."""
    times = [t for t in record.times if t.status == "ok"]
    links = ({MEASURED: as_model(link)} if link else {}) | settings.links
    plain = next((t for t in times if t.micro_batches == 1), None)
    reason = None
    if not record.times:
        reason = "no variant of the study runs on several devices"
    elif not times:
        ended = record.times[0]
        reason = f"the work of one device could not be timed: {ended.status}, {ended.reason}"
    found = list(checks(specs, results, times, link))
    errors = [abs(check.error) for check in found if check.error is not None]
    return Projection(
        reason=reason,
        compute=plain or (times[0] if times else None),
        measured_link=link,
        curves=list(curves(times, links, settings.devices)),
        buckets=list(best_buckets(Compute.of(plain), links, settings.devices)) if plain else [],
        checks=found,
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
        original=worked_example(),
    )


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.decide.scaling.project",
        description="Project step times to more devices, and check them against measured runs.",
    )
    parser.add_argument("--compute", required=True, help="compute.json")
    parser.add_argument("--specs", nargs="*", required=True, help="spec.json of each variant")
    parser.add_argument("--results", nargs="*", required=True, help="metrics.json of each variant")
    parser.add_argument("--collectives", type=Path, required=True, help="collectives.parquet")
    parser.add_argument("--settings", required=True, help="projection of the study, as JSON")
    parser.add_argument("--output", type=Path, required=True, help="projection.json")
    options = parser.parse_args(arguments)
    try:
        record = read_record(options.compute, ComputeRecord)
        specs = [read_record(file, RunSpec) for file in options.specs]
        results = [read_record(file, VariantResult) for file in options.results]
        missing = {spec.variant for spec in specs} - {result.variant for result in results}
        if missing:
            name, remedy = min(missing), f"add results/runs/{min(missing)}/metrics.json"
            problem = ConfigProblem("command line", "--results", name, "is missing", remedy)
            raise ConfigError([problem])
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    projection = project(
        record,
        {spec.variant: spec for spec in specs},
        {result.variant: result for result in results},
        measured_link(options.collectives),
        Projecting.model_validate_json(options.settings),
    )
    write_sealed(options.output, projection.model_dump_json(indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
