"""How the project takes a study file: refused clearly, taken as it is, or neither."""

import re
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from schemas.config.claims import Claim
from schemas.config.study import Study
from schemas.errors import ConfigError
from schemas.results.faults import Verdict
from transformer_core.study.checks.planned_study import PlannedStudy, plan_study
from transformer_core.study.compared_pairs import turn_groups
from transformer_core.study.declarations.study_files import study_settings
from transformer_core.study.reservations import reservation
from transformer_core.study.targets import known_targets
from transformer_core.study.variants import Declared

LONGEST = 10.0
"""Seconds for a file."""
_LONGEST_MESSAGE = 3_000


class _OutOfTimeError(BaseException):
    """Not an Exception, so that nobody takes it for one."""


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Reference(_Loader):
    """PyYAML as it is, but without dates and numbers to the base of 8 and 60."""


_INT, _FLOAT, _DATE = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_Reference.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (_INT, _FLOAT, _DATE)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in (
    (_INT, r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$"),
    (_FLOAT, r"^[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]\d+)?$"),
    (_FLOAT, r"^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
):
    _Reference.add_implicit_resolver(_tag, re.compile(_pattern), list("-+.0123456789"))


def judge(
    file: Path, entries: list[str], declared: Declared, claims: Mapping[str, Claim]
) -> tuple[Verdict, str]:
    """How a study file and entries of the command line are taken, and what was said."""
    try:
        with _time_limit(LONGEST):
            settings = study_settings([file], entries)
            planned = plan_study(settings, str(file), declared, claims)
            _use(planned)
    except ConfigError as error:
        return _clear(error, str(file))
    except _OutOfTimeError:
        return "hung", f"not done after {LONGEST:g} s"
    except Exception:
        return "traceback", traceback.format_exc()[-1_500:]
    return _same(file, entries, planned.study)


def _use(planned: PlannedStudy) -> None:
    """What the rules do with a study before the first job starts."""
    study = planned.study
    known_targets(study, planned.extra_pairs)
    turn_groups(planned.pairs, study.comparison.together)
    for spec in planned.specs.values():
        reservation([spec], study.tokenizer.vocabulary)
        spec.digest()


def _clear(error: ConfigError, file: str) -> tuple[Verdict, str]:
    """Whether an error says all that it must, in a few lines."""
    for problem in error.problems:
        parts = (problem.file, problem.field, problem.message, problem.remedy)
        if not all(part.strip() for part in parts) or len(str(problem)) > _LONGEST_MESSAGE:
            return "unclear", str(problem)
    return ("refused", str(error)) if error.problems else ("unclear", "no problem is named")


def _same(file: Path, entries: list[str], study: Study) -> tuple[Verdict, str]:
    """Whether a study is what another reader finds in the same file."""
    if entries:
        return "same", ""
    try:
        with _time_limit(LONGEST):
            other = Study.model_validate(yaml.load(file.read_text("utf-8-sig"), _Reference))
    except Exception as error:
        return "silent", f"taken, but another reader says {error!r:.500}"
    if other.canonical_json() != study.canonical_json():
        return "silent", f"{study.canonical_json()} in place of {other.canonical_json()}"
    if Study.model_validate_json(study.canonical_json()) != study:
        return "silent", "the study is another one when it is read back"
    return "same", ""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer; on the main thread only."""

    def stop(*_: Any) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
