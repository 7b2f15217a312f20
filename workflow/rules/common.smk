# The study, its run specs, and what all rules share. Everything wrong in a file is said here,
# before the DAG is made.
import importlib.util
import json
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from schemas.certificates import compared_with, short_runs
from schemas.claims import CLAIMS_FILE, claim_files, claim_pairs, read_claims
from schemas.comparisons import compared_pairs, turn_groups
from schemas.data import SPLITS
from schemas.errors import ConfigError
from schemas.families import FAMILIES_FILE, family_pairs, read_families
from schemas.jobs import largest, on_all_devices, on_one_device, on_one_host, reservation
from schemas.link_trials import link_trials
from schemas.resolve import VARIANTS_FILE, check_study, lineage, read_variants, resolve_all
from schemas.results import PredictedMemory
from schemas.targets import FIGURES, TABLES, check_owner, check_targets, known_targets
from transformer_core.analysis.files import read_record
from transformer_core.sources import sources

STUDY_FILE = " + ".join(
    [os.path.relpath(path) for path in workflow.configfiles]
    + ["--config"] * bool(workflow.config_settings.config)
)
OWNER = Path("results/.study")
# Another folder of results, for results/compare.html. Not a part of the study.
AGAINST = config.pop("against", None)
# A folder on a disk of every host for copies of the shards. Where bytes lie changes no result.
if local_shards := config.pop("local_shards", None):
    os.environ.update(LOCAL_SHARDS=str(local_shards))


# Jobs that share the tokenizing of the training pairs: --set-scatter tokenize=16.
scattergather:
    tokenize=1,


try:
    VARIANTS = read_variants(f"{workflow.basedir}/{VARIANTS_FILE}")
    STUDY = check_study(config, STUDY_FILE)
    SPECS = resolve_all(STUDY, VARIANTS, STUDY_FILE, VARIANTS_FILE)
    FAMILIES = read_families(f"{workflow.basedir}/{FAMILIES_FILE}", VARIANTS)
    CLAIMS = read_claims(f"{workflow.basedir}/{CLAIMS_FILE}", VARIANTS, FAMILIES)
    SHORT_RUNS = short_runs(STUDY, VARIANTS, SPECS, STUDY_FILE, VARIANTS_FILE)
    check_owner(STUDY, OWNER, STUDY_FILE)
    TRAIN_SHARDS = f"results/data/{STUDY.corpus.name}/shards/train"
    PART_MANIFESTS = gather.tokenize(f"{TRAIN_SHARDS}/part-{{scatteritem}}/manifest.json")
    # Comparisons that claims and families ask for, beside those with the baseline.
    EXTRA_PAIRS = claim_pairs(CLAIMS, STUDY) + family_pairs(FAMILIES, STUDY)
    PAIRS = compared_pairs(STUDY, EXTRA_PAIRS, STUDY_FILE)
    # Snakemake tells its targets only after the rules are read, and then without near names.
    check_targets(sys.argv[1:], [*known_targets(STUDY, EXTRA_PAIRS), *PART_MANIFESTS])
except ConfigError as error:
    raise WorkflowError(f"the study cannot run as it is:\n{error}") from None

CORPUS = STUDY.corpus.name
# Runs over several real hosts are not grouped: the others must know which processes come next.
SEVERAL_HOSTS = [
    name for name, spec in SPECS.items() if spec.machine.nodes > 1 and spec.machine.link is None
]
TURNS = turn_groups(PAIRS, STUDY.comparison.together, alone=SEVERAL_HOSTS)
GROUP_OF = {
    f"{reference}/{variant}": group
    for group, (reference, variants) in TURNS.items()
    for variant in variants
}
PAIRED_RUNS = [f"results/pairs/{reference}/{variant}.json" for variant, reference in PAIRS]
TRAJECTORIES = "results/equivalence/trajectories"
REPEATS = range(1, STUDY.repeats + 1)
# What a run shows and records of its surroundings: no reason to train again.
OBSERVERS = tuple(
    f"transformer_core.measure.{name}"
    for name in ("progress", "outcome", "provenance", "hardware", "nvml", "launch")
)


# Jobs run the Python that runs Snakemake, also where its environment is not activated.
shell.prefix(f"set -euo pipefail; export PATH={Path(sys.executable).parent}:$PATH; ")


# How this study was asked for, for the commands that results name. In the environment, because a
# parameter of a rule would make every run stale when another study file or option is given.
os.environ.update(
    STUDY_OPTIONS=shlex.join(
        [
            *[f"--configfile={os.path.relpath(p)}" for p in workflow.config_settings.configfiles],
            *[f"--config={k}={json.dumps(v)}" for k, v in workflow.config_settings.config.items()],
            *[f"--set-scatter=tokenize={len(PART_MANIFESTS)}"][: len(PART_MANIFESTS) > 1],
        ]
    )
)


envvars:
    "STUDY_OPTIONS",


wildcard_constraints:
    variant="|".join(SPECS),
    repeat="|".join(map(str, REPEATS)),
    split="train|validation|test",


# Timed jobs take this slot one at a time, wherever they run from, with or without a profile.
resource_scopes:
    timed="local",


workflow.global_resources.setdefault("timed", 1)


onstart:
    OWNER.parent.mkdir(exist_ok=True)
    OWNER.write_text(f"{STUDY.name}\n")
    # With a limit on the rate of jobs, Snakemake 9 looks for new ones ever more often, in the end
    # dozens of times a second, and takes a good part of a core from what is timed. One machine
    # needs no such limit.
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None


def generating_processes(wildcards):
    """Processes for a split of the generated corpus; one where starting others takes longer."""
    pairs = getattr(STUDY.corpus, f"{wildcards.split}_pairs", 0)
    return workflow.cores if pairs >= 100_000 else 1


def dump(schema):
    """A schema as one line of JSON, for a command line."""
    return schema.canonical_json()


def dump_all(schemas):
    """Schemas by name, as one line of JSON."""
    return json.dumps({name: schema.model_dump(mode="json") for name, schema in schemas.items()})


def templates():
    """The texts that the report's page is made of."""
    folder = Path(workflow.basedir, "transformer_core/report")
    return sorted(
        os.path.relpath(path)
        for kind in ("html", "css", "yaml", "po")
        for path in folder.rglob(f"*.{kind}")
    )


def own_model(spec):
    """The file of a user's own model, which a run depends on like on the project's sources."""
    if spec.model.kind != "import":
        return []
    found = importlib.util.find_spec(spec.model.factory.partition(":")[0])
    return [os.path.relpath(found.origin)] if found and found.origin else []


def predictions():
    """Predictions of memory, where there are any yet."""
    file = Path("results/memory/predicted.json")
    return read_record(file, PredictedMemory).predictions if file.exists() else []


def needs(specs_of):
    """What a job reserves for the processes of the run specs that a function of wildcards gives.

    Without an executor for a cluster, only `gpu` means something, and only if there is a budget.
    """

    def ask(choose):
        def resource(wildcards, attempt):
            specs, vocabulary = specs_of(wildcards), STUDY.tokenizer.vocabulary
            return choose(reservation(specs, vocabulary, predictions(), attempt))

        return resource

    def over_hosts(choose):
        # None leaves a resource out.
        return ask(lambda job: choose(job) if job.hosts > 1 else None)

    return {
        "mem_mb": ask(lambda job: job.memory_mb),
        "runtime": ask(lambda job: job.minutes),
        "nodes": ask(lambda job: job.hosts),
        "gpu": ask(lambda job: job.gpus_per_host if job.hosts == 1 else None),
        # The launcher calls srun, once per host; the executor must not put it into a step.
        "mpi": over_hosts(lambda job: "srun"),
        "tasks": over_hosts(lambda job: job.hosts),
        "tasks_per_gpu": over_hosts(lambda job: 0),
        "gres": over_hosts(lambda job: f"gpu:{job.gpus_per_host}" if job.gpus_per_host else None),
    }


def compared_runs(wildcards):
    """The short runs that a certificate compares: of the variant and of what it must equal."""
    other = compared_with(VARIANTS[wildcards.variant])
    runs = [] if other is None else [wildcards.variant, other]
    return {
        option: f"{TRAJECTORIES}/{run}/trajectory.json"
        for option, run in zip(("run", "reference"), runs)
    }


def sides(wildcards):
    """The run specs that take turns in a group, the reference first."""
    reference, variants = TURNS[wildcards.group]
    return [SPECS[name] for name in (reference, *variants)]
