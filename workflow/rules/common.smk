# The study, its run specs, and the code that all rules share. Errors in files are reported here,
# before the DAG is built.
import logging
import os
import re
import shlex
import sys
import threading
import time
from functools import lru_cache, partial
from pathlib import Path

from snakemake.cli import get_profile_dir
from snakemake.common import SNAKEFILE_CHOICES
from snakemake.io import get_flag_value
from snakemake.logging import logger
from snakemake.settings.enums import Quietness

import transformer_core  # first: it finds the project's schemas, whatever else has this name
from schemas.base import seconds_of
from schemas.config.data import SPLITS
from schemas.config.measurement import REFERENCE
from schemas.config.run_spec import Sections
from schemas.config.study import Study
from schemas.errors import ConfigError
from transformer_core.common.digests import check as check_digest
from transformer_core.common.endings import STUDY_OPTIONS
from transformer_core.common.records import read_record
from transformer_core.report.contents import FIGURES, TABLES
from transformer_core.run import warm_start
from transformer_core.study.certification import compared_with
from transformer_core.study.checks import asked_in_vain, doubts, missing_here, own_targets
from transformer_core.study.compared_pairs import check_targets, known_targets, turn_groups
from transformer_core.study.orders import as_json, order_params, shell_prefix
from transformer_core.study.ownership import (
    check_foreign,
    check_owner,
    check_records,
    check_results,
    check_writable,
    mark_owner,
    told_without_record,
    work_alone,
)
from transformer_core.study.plan import plan_study
from transformer_core.study.reservations import (
    devices_on_a_host,
    largest,
    on_all_devices,
    on_one_device,
    on_one_host,
    reservation,
)
from transformer_core.study.staleness import KINDS, fingerprints
from transformer_core.study.stopping import stop_jobs_when_asked
from transformer_core.study.study_files import (
    CLAIMS_FILE,
    check_profiles,
    claim_files,
    claim_pairs,
    read_claims,
    study_settings,
)
from transformer_core.study.users_environment import variables_of_speed
from transformer_core.study.users_files import corpus_files, script_files
from transformer_core.study.variants import VARIANTS_FILE, lineage, read_variants

# Seconds to start a program with large imports. What follows takes longer in a new checkout: all sources
# are parsed.
STARTED = time.process_time()

# On a full disk, each line of the log would print a traceback, because it cannot be written to its file.
logging.raiseExceptions = False

# Commands such as --unlock and --summary run no jobs and need no number of cores.
CORES = workflow.resource_settings.cores or 1
# For jobs that use as many threads as a timed run, whatever they reserve. In the text of a command,
# the number would make results stale whenever --cores changes.
os.environ.update(ALL_CORES=str(CORES))
warm_start.keep_given_threads()


def shipped(place):
    """A file that comes with the workflow: the file itself, which messages then name, or Snakemake's
    copy of it if it is not on this host."""
    copy = workflow.source_path(f"../../{place}")
    original = get_flag_value(copy, "sourcecache_entry")
    return os.path.relpath(original) if os.path.exists(original) else copy


# A study given with --configfile is read from its file instead of Snakemake's `config`, which has no
# limits, keeps the last of two equal keys, and turns strings that look like dates into dates.
# The GPU check has its own study.
OWN_STUDY = "studies/gpu_check" if "results/gpu_check/report.html" in sys.argv else "config"
STUDY_FILES_GIVEN = workflow.configfiles or [shipped(f"config/{OWN_STUDY}.yaml")]
ENTRIES = workflow.config_settings.config_args or ()
STUDY_FILE = " + ".join(
    [os.path.relpath(path) for path in STUDY_FILES_GIVEN] + ["--config"] * bool(ENTRIES)
)
OWNER = Path("results/.study")
# Also joined to other options, as -nF.
FORCED_ALL, FORCED = (
    any(re.match(rf"-\w*{letter}|--force{word}", given) for given in sys.argv)
    for letter, word in (("F", "all"), ("R", "run"))
)


def refuse(message):
    """End Snakemake with a message alone: to that of an exception it would add this file and line."""
    if Quietness.ALL in (workflow.output_settings.quiet or ()):  # it hides even errors
        print(message, file=sys.stderr)
    else:
        logger.error(message)
    sys.exit(1)


# Number of jobs that tokenize the training pairs: --set-scatter tokenize=16.
scattergather:
    tokenize=1,


try:
    if workflow.is_main_process:
        check_records(Path(".snakemake"))
        check_writable(OWNER.parent)
        check_profiles(sys.argv[1:], get_profile_dir)
    # A workflow that uses this one as a module chooses which of its settings to pass.
    SETTINGS = (
        dict(config)
        if workflow.modifier.skip_configfile
        else study_settings(STUDY_FILES_GIVEN, ENTRIES)
    )
    # Another results folder, for results/compare.html; not part of the study.
    AGAINST = SETTINGS.pop("against", None)
    # A part of the study to run first: --config stage=quick
    STAGE = SETTINGS.pop("stage", "all")
    # A folder on a local disk of every host, for copies of the shards; it changes no result.
    if local_shards := SETTINGS.pop("local_shards", None):
        os.environ.update(LOCAL_SHARDS=str(local_shards))
    DECLARED = read_variants(shipped(VARIANTS_FILE))
    CLAIMS = read_claims(shipped(CLAIMS_FILE), *DECLARED)
    PLANNED = plan_study(SETTINGS, STUDY_FILE, DECLARED, CLAIMS, stage=STAGE)
    STUDY, VARIANTS, FAMILIES = PLANNED.study, PLANNED.variants, DECLARED.families
    SPECS, SHORT_RUNS, LINK_TRIALS = PLANNED.specs, PLANNED.short_runs, PLANNED.link_trials
    EXTRA_PAIRS, PAIRS = PLANNED.extra_pairs, PLANNED.pairs
    check_owner(STUDY, OWNER, STUDY_FILE)
    # A permission, which changes no result.
    STUDY = STUDY.model_copy(update={"replace_results": False})
    if workflow.is_main_process and not FORCED_ALL:
        specs = {f"results/runs/{name}/spec.json": spec for name, spec in SPECS.items()}
        planned = {"results/study.json": STUDY} | specs
        for name, run in SHORT_RUNS.items():
            planned[f"results/equivalence/trajectories/{name}/spec.json"] = run.spec
        texts = {place: schema.canonical_json() for place, schema in planned.items()}
        check_foreign(texts, STUDY_FILE, Path(".snakemake"))
    if workflow.is_main_process:
        for doubt in doubts(STUDY):
            logger.warning(doubt)
    TRAIN_SHARDS = f"results/data/{STUDY.corpus.name}/shards/train"
    PART_MANIFESTS = gather.tokenize(f"{TRAIN_SHARDS}/part-{{scatteritem}}/manifest.json")
    # Runs on several real hosts are not grouped: other hosts must know which processes come next.
    SEVERAL_HOSTS = [
        name for name, spec in SPECS.items() if spec.machine.nodes > 1 and spec.machine.link is None
    ]
    TARGETS = known_targets(STUDY, EXTRA_PAIRS, FIGURES, TABLES, SEVERAL_HOSTS)
    # Snakemake reports unknown targets only after reading the rules, and without the nearest names.
    # A study may lie in results, where it is no target.
    asked = [word for word in sys.argv[1:] if Path(word).absolute() not in workflow.configfiles]
    check_targets(asked, [*TARGETS, *PART_MANIFESTS])
    if in_vain := list(asked_in_vain(asked, STUDY)):
        raise ConfigError(in_vain)
    if AGAINST is not None or {"results/compare.html", "results/against.json"} & {*sys.argv}:
        check_results(AGAINST)
except ConfigError as error:
    refuse(f"the study cannot run as it is:\n{error}")

CORPUS = STUDY.corpus.name
TURNS = turn_groups(PAIRS, STUDY.comparison.together, alone=SEVERAL_HOSTS)
# The record of every comparison: its first sessions, or these and the ones added later.
FIRST_RECORDS = {
    pair: f"results/turns/{group}/{pair}.json"
    for group, turns in sorted(TURNS.items())
    for pair in turns.records()
}
REFINED = "results/refined"
RECORDS = [
    file if STUDY.time is None else f"{REFINED}/{pair}.json" for pair, file in FIRST_RECORDS.items()
]
TIMED = [f"results/turns/{group}" for group in TURNS] if STUDY.time is None else [REFINED]
TRAJECTORIES = "results/equivalence/trajectories"
# The margin only judges the measurements.
COMPARING = STUDY.comparison.model_dump(mode="json", exclude={"margin"})
# Seconds for each side of a job in which they take turns.
OF_A_SIDE = STUDY.comparison.on_gpus().budget / 2
TOGETHER = min(STUDY.comparison.together, len(SPECS))
REPEATS = range(1, STUDY.repeats + 1)

# The variants as defined, and their ancestors.
DEFINITIONS = {one: VARIANTS[one] for name in sorted(SPECS) for one in lineage(name, VARIANTS)}


def only(*sections):
    """The study with these sections and the defaults of most others, whose changes then make nothing stale.
    Nor does the order of variants."""
    names = ("name", "baseline", "comparison", *sections)
    kept = {name: getattr(STUDY, name) for name in names}
    return Study(variants=sorted(STUDY.variants), **kept)


# A digest of the sources that each rule depends on. As a parameter, it makes results stale when
# contents change, whatever the modification times.
CODE = fingerprints()


# Jobs use the Python that runs Snakemake, even if its environment is not activated.
SHELL = shell_prefix()
shell.prefix(SHELL)


# The options that selected this study, for the commands recorded in results. They are in the
# environment: as parameters of rules, they would make every run stale when they change. Each stands once:
# of several, Snakemake reads only the last.
SNAKEFILE = os.path.relpath(workflow.main_snakefile)
OPTIONS = {
    "--snakefile": [SNAKEFILE] * (Path(SNAKEFILE) not in SNAKEFILE_CHOICES),
    "--configfile": [os.path.relpath(path) for path in workflow.config_settings.configfiles],
    "--config": ENTRIES,
    "--set-scatter": [f"tokenize={len(PART_MANIFESTS)}"][: len(PART_MANIFESTS) > 1],
}
os.environ[STUDY_OPTIONS] = shlex.join(
    word for option, values in OPTIONS.items() if values for word in (option, *values)
)


envvars:
    STUDY_OPTIONS,


# Every other result is checked by the jobs that read it.
if workflow.is_main_process and not (FORCED_ALL or FORCED):
    for name in ("report.html", "report.md", "summary.json"):
        try:
            check_digest(Path(f"results/{name}"))
        except ConfigError as error:
            logger.warning(str(error))


wildcard_constraints:
    variant="|".join(SPECS),
    run="|".join(SHORT_RUNS) or "none",
    repeat="|".join(map(str, REPEATS)),
    group="|".join(TURNS) or "none",
    trial="|".join(LINK_TRIALS) or "none",
    trace="|".join(STUDY.traces) or "none",
    split="train|validation|test",


# Timed jobs take this slot one at a time, with or without a profile, and all cores, so that nothing else
# disturbs the timing.
resource_scopes:
    timed="local",


workflow.global_resources.setdefault("timed", 1)


TIMEKEEPERS = []
REPORTS = []  # reports of a whole study that this run writes


def stop_time():
    """Stop the clock of the study, and Snakemake's timers for free job slots: it would wait for the
    last of them."""
    from transformer_core.study.timekeeping import end

    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()
    for keeper in TIMEKEEPERS:
        logger.removeHandler(keeper)
        end(keeper)


def say_last(text):
    """Say this and nothing more: jobs that were stopped are no errors to be reported. Another thread may be
    about to say something."""
    logger.disabled = True
    level = logging.WARNING
    logger.callHandlers(logger.makeRecord(logger.name, level, "", 0, text, (), None))


def without_record():
    """Results that Snakemake keeps without knowing how they were made."""
    dag, record = workflow.dag, workflow.persistence.metadata
    kept = [job for job in dag.jobs if dag.reason(job).no_metadata and not dag.needrun(job)]
    return [place for job in kept for place in job.output if record(place) is None]


def answer_in(report):
    """The answer of results/report.md, without Markdown."""
    return re.sub(r"[*`\\]", "", Path(report).read_text(encoding="utf-8").split("\n\n")[1])


onsuccess:
    stop_time()
    for report in REPORTS:
        logger.warning(f"{answer_in(report)}\nThe report: {Path(report).with_suffix('.html')}")


onerror:
    stop_time()


onstart:
    jobs = [] if workflow.touch else [*workflow.dag.needrun_jobs()]  # --touch runs no jobs
    read = [job.wildcards.split for job in jobs if job.rule.name == "read_corpus"]
    trained = [SPECS[job.wildcards.variant] for job in jobs if job.rule.name == "train"]
    # The GPU check says itself what is missing.
    here = trained if workflow.local_exec and OWN_STUDY == "config" else []
    if problems := list(missing_here(STUDY.corpus, read, here, STUDY_FILE)):
        refuse(f"the study cannot run on this host:\n{ConfigError(problems)}")
    try:
        work_alone(Path(".snakemake/at-work"))
        mark_owner(STUDY, OWNER)
    except ConfigError as error:
        refuse(f"the study cannot run now:\n{error}")
    if not workflow.touch:
        if kept := without_record():
            logger.warning(told_without_record(kept))
        from transformer_core.machine.vendor_peaks import expected_rate_of_gpu
        from transformer_core.study.timekeeping import begin

        sides = {group: len(turns.sides) for group, turns in TURNS.items()}
        say = partial(logger.info, extra={"quietness": Quietness.PROGRESS})
        rate = None if STUDY.machine.device == "cpu" else expected_rate_of_gpu()
        manifest = Path(f"results/data/{CORPUS}/shards/train/manifest.json")
        REPORTS.extend("results/report.md" for job in jobs if job.rule.name == "page")
        TIMEKEEPERS.append(
            begin(jobs, CORES, STUDY, SPECS, sides, manifest, say, STARTED, rate)
        )
        logger.addHandler(TIMEKEEPERS[-1])
    if workflow.local_exec:  # on a cluster, Snakemake cancels its jobs
        stop_jobs_when_asked(say_last)
        # The terminal sends Ctrl-C to jobs as well. By themselves they would print tracebacks.
        shell.prefix(f"trap '' INT; {SHELL}")
        # Jobs on this host may be forked from a process that has imported torch.
        os.environ.setdefault(warm_start.WARM_STARTS, warm_start.offer_warm_starts())


def generating_processes(wildcards):
    """Processes that generate a split of the corpus; one if starting more would take longer."""
    pairs = getattr(STUDY.corpus, f"{wildcards.split}_pairs", 0)
    return CORES if pairs >= 100_000 else 1


def as_text(text):
    """A literal parameter: in a plain string, Snakemake takes {braces} for wildcards."""
    return lambda wildcards: text


def job(rule, of=None, again=None, **fields):
    """Parameters of a rule whose job runs an order (see study/orders.py)."""
    return order_params(KINDS.get(rule, rule), CODE[rule], of, again, **fields)


# Commands of such rules. The order is read from standard input: Linux limits a word of a command line to
# 128 KiB. Quick jobs are forks of a process that has imported torch.
JOB = "python -m transformer_core.run.job --order - --log-file {log} <<< {params.order:q}"
QUICK_JOB = JOB.replace("-m ", "-m transformer_core.run.quick_start ")
# For small corpora, without a warm start: importing takes no longer than asking a server that has
# imported everything.
COLD_JOB = f"WARM_STARTS=off {QUICK_JOB}"
GPU_JOB, QUICK_GPU_JOB = (f"{command} --gpus {{params.gpus}}" for command in (JOB, QUICK_JOB))
# Rules without inputs write their parameters.
WRITE_SPEC = "python -m transformer_core.common.digests {output} <<< {params.spec:q} 2> {log}"
SHARDS = expand(
    f"results/data/{CORPUS}/shards/{{split}}/manifest.json", split=["train", "validation"]
)


def specs_of_variant(wildcards):
    return [SPECS[wildcards.variant]]


def every_spec(wildcards):
    return [*SPECS.values()]


def largest_spec(wildcards):
    return [largest(SPECS.values())]


def baseline_spec(wildcards):
    return [SPECS[STUDY.baseline]]


def short_spec_of(wildcards):
    return [SHORT_RUNS[wildcards.run].spec]


def real_link(wildcards):
    return [LINK_TRIALS[wildcards.trial].real]


def devices(wildcards):
    return devices_on_a_host(SPECS[wildcards.variant].machine)


def without_braces(paths):
    """Paths that can be inputs: Snakemake always takes braces in a path for wildcards."""
    return [path for path in paths if "{" not in path and "}" not in path]


def seen_of(paths):
    """Sizes of users' files, and their times if paths have braces. Snakemake itself compares only
    times, which copies and editors may keep, and cannot track paths with braces."""
    plain = without_braces(paths)
    found = [(path, os.stat(path)) for path in paths if os.path.exists(path)]
    return [
        f"{path} {file.st_size}" if path in plain else f"{path} {file.st_mtime_ns} {file.st_size}"
        for path, file in found
    ]


def predictions():
    """Predictions of memory, if they have been made."""
    file = Path("results/memory/predicted.json")
    return predictions_at(file, file.stat().st_mtime_ns) if file.exists() else []


@lru_cache(maxsize=1)
def predictions_at(file, written):
    """The predictions in a file written at this time, cached: every job asks several times."""
    from schemas.results.memory import PredictedMemory

    try:
        return read_record(file, PredictedMemory).predictions
    except ConfigError:  # its readers name the damage; the job that makes it again asks here, too
        return []


def needs(specs_of, seconds=0.0, times=1):
    """Resources for the processes of the run specs that a function of the wildcards returns, each so
    many times, and for so many seconds besides a training.

    Without a cluster executor, only `gpu` has an effect, and only if Snakemake has a budget for it.
    """

    def ask(choose):
        def resource(wildcards, attempt):
            specs, vocabulary = times * specs_of(wildcards), STUDY.tokenizer.vocabulary
            return choose(reservation(specs, vocabulary, predictions(), attempt, seconds))

        return resource

    def over_hosts(choose):
        # None leaves a resource out.
        return ask(lambda job: choose(job) if job.hosts > 1 else None)

    return {
        "mem_mb": ask(lambda job: job.memory_mb),
        "runtime": ask(lambda job: job.minutes),
        "nodes": ask(lambda job: job.hosts),
        "gpu": ask(lambda job: job.gpus_per_host if job.hosts == 1 else None),
        # The launcher calls srun once per host; the executor must not wrap it in a step.
        "mpi": over_hosts(lambda job: "srun"),
        "tasks": over_hosts(lambda job: job.hosts),
        "tasks_per_gpu": over_hosts(lambda job: 0),
        "gres": over_hosts(lambda job: f"gpu:{job.gpus_per_host}" if job.gpus_per_host else None),
    }


def compared_runs(wildcards):
    """Inputs of a certificate: the short runs of the variant and of the run that it must match, if any,
    and the timed run, which must have computed in the same way."""
    if wildcards.variant not in SHORT_RUNS:
        return {}
    other = compared_with(VARIANTS[wildcards.variant])
    return {
        "short_run": f"{TRAJECTORIES}/{wildcards.variant}/trajectory.json",
        **({"reference": f"{TRAJECTORIES}/{other}/trajectory.json"} if other else {}),
        "timed": f"results/runs/{wildcards.variant}/repeat-1/metrics.json",
    }


def sides(wildcards):
    """The run specs that take turns in a group, the reference first."""
    return [SPECS[name] for name in TURNS[wildcards.group].sides]
