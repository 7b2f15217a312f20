"""Times variants and their reference in turns.

On a machine whose speed drifts, turns resolve small differences: adjacent windows see the same
machine. Random differences between processes (such as their memory layout) show between sessions,
which start fresh processes: see :mod:`transformer_core.measure.sessions`.

Every complete session is kept in a file: a killed job resumes with the next one, and so does a job
with a larger ``budget`` than before. If a side cannot train, the record has its status and no
number.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import Field

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.errors import ConfigError, ConfigProblem
from schemas.results import Pair
from transformer_core.common.digests import write_result
from transformer_core.common.endings import count_failure, failures, reproducing_command
from transformer_core.common.folder_locks import exclusive
from transformer_core.common.records import read_record
from transformer_core.machine.hardware import read_hardware
from transformer_core.measure.comparison import compare_pairs, leave_sessions
from transformer_core.measure.sessions import Side, for_devices, start_side
from transformer_core.run.coordinator import POLL_SECONDS
from transformer_core.run.job import Job
from transformer_core.run.launcher import lends_processes_only, spans_machines
from transformer_core.run.order import shard_manifests
from transformer_core.run.supervisor import Child, end_on_request


def lend(sides: Sequence[Side], data: Path, folder: Path, output: Path, command: str) -> None:
    """On every host except the first, starts this host's processes of the sides that span hosts,
    session after session, until the first host has written the record ``output``."""

    def written() -> int:
        return output.stat().st_mtime_ns if output.exists() else 0

    older = written()
    children: dict[str, Child] = {}
    while written() in (0, older):
        for side in sides:
            child = children.get(side.name)
            if spans_machines(side.spec) and (child is None or child.poll() is not None):
                children[side.name] = start_side(side, data, folder, command)
        time.sleep(POLL_SECONDS)
    # They wait at the rendezvous for a session that does not come.
    for child in children.values():
        child.kill()
        child.wait()


def pairs_of(asked: Sequence[str], names: Sequence[str]) -> list[Pair]:
    """The comparisons of an order, each between two of ``names``, by default each name with the
    first. ConfigError for an unknown name."""
    reference, *variants = names
    pairs: list[Pair] = []
    for text in asked or [f"{variant}/{reference}" for variant in variants]:
        one, _, two = text.partition("/")
        if {one, two} - {*names}:
            raise _wrong("pairs", text, f"VARIANT/REFERENCE of {', '.join(names)}")
        pairs.append(Pair(one, two))
    return pairs


class TurnsJob(Job):
    """Times variants against their reference, in turns."""

    kind = "turns"

    specs: list[Path] = Field(min_length=2)
    """spec.json of each side, the reference first."""
    comparing: Comparing
    """comparison of the study."""
    data: Path
    """results/data/<corpus>."""
    pairs: tuple[str, ...] = ()
    """Comparisons of two sides each, as VARIANT/REFERENCE; empty for every side with the first."""
    outputs: list[Path] = Field(min_length=1)
    """File of each comparison's record."""
    target: Path | None = None
    """The target that makes the records again; null for the first output."""
    sessions: Path | None = None
    """Folder of the sessions; null for the first output without its suffix."""
    code: str = ""
    """Digest of the sources: sessions of different code do not count."""

    def run(self, log_file: Path | None) -> None:
        outputs, specs = self.outputs, [read_record(file, RunSpec) for file in self.specs]
        sides = [Side(spec.variant, spec, place=place) for place, spec in enumerate(specs)]
        file_of = {side.name: file for side, file in zip(sides, self.specs, strict=True)}
        pairs = pairs_of(self.pairs, list(file_of))
        if len(pairs) != len(outputs):
            raise _wrong("outputs", len(outputs), f"as many as comparisons, {len(pairs)}")
        end_on_request()
        folder = self.sessions or outputs[0].with_suffix("")
        command = reproducing_command(self.target or outputs[0])
        if lends_processes_only():
            lend(sides, self.data, folder, outputs[-1], command)
            return
        comparing = for_devices(self.comparing, [side.spec for side in sides])
        # Ratios are those of one kind of machine: on a cluster, a job may resume on another.
        here = read_hardware()
        code = f"{self.code}, {here.cpu}, {here.devices}"
        with exclusive(folder):
            result = folder.with_suffix("")
            failed, again = failures(result), partial(count_failure, result)
            runs = compare_pairs(sides, pairs, comparing, self.data, folder, command, code, again)
            for pair, output in zip(pairs, outputs, strict=True):
                inputs = [*(file_of[name] for name in pair), *shard_manifests(self.data)]
                write_result(output, runs[pair].model_dump_json(indent=1) + "\n", inputs)
            leave_sessions(folder, comparing, resumes=failures(result) > failed)


def _wrong(field: str, value: object, expected: str) -> ConfigError:
    """The error for an order whose fields do not fit together."""
    problem = ConfigProblem(
        "--order", field, value, "does not fit the other fields of the order", f"give {expected}"
    )
    return ConfigError([problem])
