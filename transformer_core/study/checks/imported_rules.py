"""What a study may say beside a training of the user's own."""

from collections.abc import Iterator

from schemas.config.own_training import ImportedTask
from schemas.config.run_spec import RunSpec
from schemas.config.script import ScriptTask
from schemas.config.study import Study
from schemas.errors import ConfigProblem
from transformer_core.study.checks.task_rules import Violation

_NOT_USED = ("corpus", "filter", "tokenizer", "batching", "model", "evaluation")
REPORT = "results/report.html"
_FILES = ("report.md", "results.json", "changes.diff", "profiles.json")
OWN_TARGETS = (REPORT, *(f"results/own_training/{file}" for file in _FILES))
"""Targets of a study whose task is a function of the user's (task.kind = import)."""
SCRIPT_TARGETS = (
    REPORT,
    "results/report.md",
    "results/tune/answer.json",
    "results/tune/changes.diff",
)
"""Targets of a study whose task is a script of the user's (task.kind = script)."""


def of_imported(spec: RunSpec) -> Iterator[Violation]:
    """Sections that the user's own training does not read, but that are set."""
    if not isinstance(spec.task, ImportedTask | ScriptTask):
        return
    for name in _NOT_USED:
        section, usual = getattr(spec, name), RunSpec.model_fields[name].default
        if section != usual:
            field = next(f for f in type(section).model_fields if _differs(section, usual, f))
            yield (
                f"{name}.{field}",
                getattr(section, field),
                f"is not used: with task.kind = {spec.task.kind}, model and batches are your own",
                f"leave {name} out; settings of your code go into task",
            )


def _differs(section: object, usual: object, field: str) -> bool:
    return getattr(section, field) != getattr(usual, field, None)


def of_imported_study(study: Study, file: str) -> Iterator[ConfigProblem]:
    """Variants, which are laid over a study's sections, of a study that has none of these."""
    if isinstance(study.task, ImportedTask | ScriptTask) and study.variants != [study.baseline]:
        yield ConfigProblem(
            file,
            "variants",
            study.variants,
            f"is not used: with task.kind = {study.task.kind}, task.techniques says what is tried",
            f"take variants: [{study.baseline}]",
        )


def own_targets(study: Study) -> tuple[str, ...]:
    """Targets of a study of the user's own training; none of another study."""
    kind = study.task.kind
    return OWN_TARGETS if kind == "import" else SCRIPT_TARGETS if kind == "script" else ()


def asked_in_vain(asked: list[str], study: Study) -> Iterator[ConfigProblem]:
    """Targets on a command line that a study with a training of the user's own does not have."""
    if not isinstance(study.task, ImportedTask | ScriptTask):
        return
    targets = own_targets(study)
    for target in asked:
        if target.startswith("results/") and target not in targets:
            yield ConfigProblem(
                "command line",
                "target",
                target,
                f"is not made of a training of your own (task.kind = {study.task.kind})",
                f"ask for {REPORT}",
            )
