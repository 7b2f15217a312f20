"""What a study may say beside a training of the user's own."""

from collections.abc import Iterator

from schemas.config.own_training import ImportedTask
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.errors import ConfigProblem
from transformer_core.study.checks.task_rules import Violation

_NOT_USED = ("corpus", "filter", "tokenizer", "batching", "model", "evaluation")
REPORT = "results/report.html"
_FILES = ("report.md", "results.json", "changes.diff", "profiles.json")
OWN_TARGETS = (REPORT, *(f"results/own_training/{file}" for file in _FILES))
"""What a study with a training of the user's own makes."""


def of_imported(spec: RunSpec) -> Iterator[Violation]:
    """Sections that the user's own training does not read, but that are set."""
    if not isinstance(spec.task, ImportedTask):
        return
    for name in _NOT_USED:
        section, usual = getattr(spec, name), RunSpec.model_fields[name].default
        if section != usual:
            field = next(f for f in type(section).model_fields if _differs(section, usual, f))
            yield (
                f"{name}.{field}",
                getattr(section, field),
                "is not used: with task.kind = import, model and batches are those of task.factory",
                f"leave {name} out, and hand settings to the function with task.options",
            )


def _differs(section: object, usual: object, field: str) -> bool:
    return getattr(section, field) != getattr(usual, field, None)


def of_imported_study(study: Study, file: str) -> Iterator[ConfigProblem]:
    """Variants, which are laid over a study's sections, of a study that has none of these."""
    if isinstance(study.task, ImportedTask) and study.variants != [study.baseline]:
        yield ConfigProblem(
            file,
            "variants",
            study.variants,
            "is not used: with task.kind = import, what is tried stands in task.techniques",
            f"take variants: [{study.baseline}]",
        )


def asked_in_vain(asked: list[str], study: Study) -> Iterator[ConfigProblem]:
    """Targets on a command line that a study with a training of the user's own does not have."""
    if not isinstance(study.task, ImportedTask):
        return
    for target in asked:
        if target.startswith("results/") and target not in OWN_TARGETS:
            yield ConfigProblem(
                "command line",
                "target",
                target,
                "is not made of a training of your own (task.kind = import)",
                f"ask for {REPORT}",
            )
