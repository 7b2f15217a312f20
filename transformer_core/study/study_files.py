"""Files of the user: the study, with settings on the command line, and config/claims.yaml."""

import argparse
import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from schemas.base import kinds_of, merge
from schemas.config.claims import Claim, Claims, ComparisonTest, TrendTest, numbers_of, variants_of
from schemas.config.study import Study
from schemas.config.variants import Family, Variant
from schemas.errors import ConfigError, ConfigProblem, nearest
from transformer_core.common.yaml_files import check_entries, parse, read_mapping
from transformer_core.study.variants import VARIANTS_FILE, unknown_variant, with_compositions

_TEMPLATE = "__use_yte__"
_SETTINGS = {".yaml", ".yml", ".json"}
_KEY = re.compile(r"[a-zA-Z_][\w-]*\w")  # as in Snakemake


def study_settings(files: Iterable[str | Path], entries: Iterable[str] = ()) -> dict[str, Any]:
    """The settings in ``files``, each overriding those before it, and ``entries``, KEY=VALUE as on
    the command line, overriding all. A section of another ``kind`` drops fields that this does not
    have, as in variants. ConfigError if any cannot be read."""
    settings: dict[str, Any] = {}
    kinds = kinds_of(Study)
    for file in files:
        read = read_mapping(file)
        if _TEMPLATE in read:
            message, remedy = "makes Snakemake run the file as a template", "remove it"
            problem = ConfigProblem(str(file), _TEMPLATE, read[_TEMPLATE], message, remedy)
            raise ConfigError([problem])
        settings = merge(settings, read, kinds)
    for entry in entries:
        settings = merge(settings, read_entry(entry), kinds)
    return settings


def read_entry(entry: str) -> dict[str, Any]:
    """One KEY=VALUE of the command line; the value is YAML."""
    key, separator, text = entry.partition("=")
    if not separator or not text.strip():
        problem = ConfigProblem("--config", key, None, "has no value", f"write {key}=VALUE")
        raise ConfigError([problem])
    if not _KEY.fullmatch(key):  # Snakemake would refuse it with a traceback
        message, remedy = "is not the name of a setting", "write NAME=VALUE"
        first, *rest = key.split(".")
        if rest and all(map(_KEY.fullmatch, (first, *rest))):
            message = "names a field within a section"
            remedy = f"write {first}={'{'}{': {'.join(rest)}: {text}{'}' * len(rest)}, in quotes"
        raise ConfigError([ConfigProblem("--config", key.strip() or entry, text, message, remedy)])
    return {key: parse(text, f"--config {key}")}


def cache_of_snakemake(folder: Path) -> dict[str, str]:
    """The variable that moves Snakemake's cache into ``folder`` if this user has no home that can be
    written, as in many containers: Snakemake would end with a traceback."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the user has no home at all
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        place = cache / "snakemake/snakemake/source-cache"  # as in Snakemake
        place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            return {}
    return {"XDG_CACHE_HOME": str(folder / ".snakemake/cache")}


def _parser() -> argparse.ArgumentParser:
    """Reads Snakemake's options that concern settings of the study."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", action="append", default=[])
    parser.add_argument("--config", "-C", nargs="*", action="append", default=[])
    parser.add_argument("--profile", action="append")
    parser.add_argument("--workflow-profile", default="default")
    return parser


def check_profiles(
    arguments: Sequence[str], find: Callable[[str], tuple[Path, Path] | None]
) -> None:
    """ConfigError if --config hides settings of a profile: Snakemake takes all from one of the two.
    ``find`` gives the folder and the file of a profile."""
    given, _ = _parser().parse_known_args(arguments)
    entries = [*chain(*given.config)]
    named = [entry.partition("=")[0] for entry in entries]
    profiles = given.profile or [os.environ.get("SNAKEMAKE_PROFILE", "none")]
    # The workflow's profile lies in this folder; one of the user with that name is not meant.
    own = (given.workflow_profile, f"profiles/{given.workflow_profile}")
    for name in [*profiles, *filter(os.path.exists, own)] if entries else []:
        if file := find(name) or find(f"profiles/{name}"):
            config = (yaml.safe_load(file[1].read_text()) or {}).get("config") or []
            if isinstance(config, dict):
                config = [f"{key}={json.dumps(value)}" for key, value in config.items()]
            config = [config] if isinstance(config, str) else config
            if lost := [entry for entry in config if entry.partition("=")[0] not in named]:
                message = f"hides the settings of {file[1]}: Snakemake reads only one of the two"
                remedy = f"write all of them: --config {shlex.join([*entries, *lost])}"
                place = ("command line", "config", shlex.join(entries))
                raise ConfigError([ConfigProblem(*place, message, remedy)])


def guard(arguments: Sequence[str] | None = None) -> None:
    """End this process if the settings on Snakemake's command line cannot be read.

    Snakemake reads them before the Snakefile, without limits: a file of a kilobyte can keep it busy
    forever. profiles/default calls this earlier.
    """
    os.environ.update(cache_of_snakemake(Path.cwd()))
    try:
        given, _ = _parser().parse_known_args(arguments)
    except (argparse.ArgumentError, SystemExit):
        return  # Snakemake reports it
    files, entries = (list(chain(*each)) for each in (given.configfile, given.config))
    try:
        for name, times in {"configfile": given.configfile, "config": given.config}.items():
            if len(times) > 1:
                message = f"is given {len(times)} times, of which Snakemake reads only the last"
                remedy = f"write all of them after one: --{name} {shlex.join(chain(*times))}"
                raise ConfigError([ConfigProblem("command line", name, times[0], message, remedy)])
        study_settings(files, entries)
    except ConfigError as error:
        said = f"the study cannot run as it is:\n{error}"
        # Both options take every word after them.
        targets = [file for file in files if Path(file).suffix not in _SETTINGS]
        targets += [entry for entry in entries if "=" not in entry]
        if targets:
            said += f"\nIf this is a target, write it before the options: {shlex.join(targets)} ..."
        sys.exit(said)


CLAIMS_FILE = "config/claims.yaml"


def read_claims(
    path: str | Path, variants: Mapping[str, Variant], families: Mapping[str, Family]
) -> dict[str, Claim]:
    """All claims by id; ConfigError if one names an unknown variant or family."""
    file = str(path)
    claims: dict[str, Claim] = check_entries(read_mapping(path), Claims, file)
    tests = {
        f"{name}.tests[{position}]": test
        for name, claim in claims.items()
        for position, test in enumerate(claim.tests)
    }
    named = {name for test in tests.values() for name in variants_of(test).values()}
    variants = with_compositions(variants, named, file)
    problems = []
    for place, test in tests.items():
        for field, variant in variants_of(test).items():
            if variant not in variants:
                explained = unknown_variant(variant, variants)
                problems.append(ConfigProblem(file, f"{place}.{field}", variant, *explained))
        if isinstance(test, TrendTest) and test.family not in families:
            message, remedy = f"is not a curve of {VARIANTS_FILE}", nearest(test.family, families)
            problems.append(ConfigProblem(file, f"{place}.family", test.family, message, remedy))
        if isinstance(test, ComparisonTest) and test.variant == test.reference:
            message, remedy = "is compared with itself", "name another reference"
            field, name = f"{place}.reference", test.reference
            problems.append(ConfigProblem(file, field, name, message, remedy))
    if problems:
        raise ConfigError(problems)
    return claims


def claim_pairs(claims: Mapping[str, Claim], study: Study) -> list[tuple[str, str]]:
    """The pairs (variant, reference) of the study that a claim compares, each once."""
    runs = set(study.variants)
    pairs = [
        (test.variant, test.reference)
        for claim in claims.values()
        for test in claim.tests
        if isinstance(test, ComparisonTest) and {test.variant, test.reference} <= runs
    ]
    return list(dict.fromkeys(pairs))


def claim_files(claims: Mapping[str, Claim]) -> list[str]:
    """The results that claims read numbers from, as targets, each once."""
    targets = [
        number.target
        for claim in claims.values()
        for test in claim.tests
        for number in numbers_of(test)
    ]
    return list(dict.fromkeys(targets))
