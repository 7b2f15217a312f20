"""What a server imports before it forks: one for workers what trainings need, one for jobs, which
wait for their workers or compute for moments, next to nothing."""

CHANGES_NO_RESULT = True  # a program imports what it needs, forked or not

IMPORTS = (
    "torch",
    # The optimizers of torch import it when they are first used.
    "torch._dynamo",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.launcher",
    "transformer_core.measure.alone.worker",
    "transformer_core.measure.memory.anatomy.worker",
    "transformer_core.certify.trajectory.worker",
    "transformer_core.measure.turns.worker",
    "transformer_core.observe.profiler",
    "transformer_core.training.translate",
    "transformer_core.training.continue_texts",
)

JOBS = (
    "transformer_core.measure.alone.job",
    "transformer_core.measure.evaluation.job",
    "transformer_core.measure.memory.anatomy.job",
    "transformer_core.certify.trajectory.job",
    "transformer_core.observe.profile_job",
    "transformer_core.observe.breakdown",
    "transformer_core.trace.__main__",
    "transformer_core.certify.certificates.certify",
    "transformer_core.certify.certificates.certificate_table",
    "transformer_core.decide.comparisons.combine",
)
"""None of them imports torch, and none is measured."""


def is_job(module: str) -> bool:
    """Whether the server for jobs has this module, or package with a program."""
    return module in JOBS or f"{module}.__main__" in JOBS
