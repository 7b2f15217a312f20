"""What a user says of a study: its files, and settings on the command line."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, ConfigProblem
from transformer_core.common.plain_yaml import parse
from transformer_core.common.yaml_files import read_mapping

_TEMPLATE = "__use_yte__"
_SETTINGS = {".yaml", ".yml", ".json"}


def study_settings(files: Iterable[str | Path], entries: Iterable[str] = ()) -> dict[str, Any]:
    """The settings in ``files``, each laid over those before it, and on top those in ``entries``,
    KEY=VALUE as on the command line. ConfigError for what cannot be read."""
    settings: dict[str, Any] = {}
    for file in files:
        read = read_mapping(file)
        if _TEMPLATE in read:
            problem = ConfigProblem(
                str(file), _TEMPLATE, read[_TEMPLATE], "makes a program of the file", "remove it"
            )
            raise ConfigError([problem])
        settings = _laid_over(settings, read)
    for entry in entries:
        settings = _laid_over(settings, read_entry(entry))
    return settings


def read_entry(entry: str) -> dict[str, Any]:
    """One KEY=VALUE of the command line, whose value is YAML."""
    key, separator, text = entry.partition("=")
    if not separator:
        problem = ConfigProblem("--config", entry, None, "has no value", f"write {key}=VALUE")
        raise ConfigError([problem])
    return {key: parse(text, f"--config {key}")}


def _laid_over(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _laid_over(old, value)
        merged[key] = value
    return merged


def guard(arguments: Sequence[str] | None = None) -> None:
    """End this process if the settings that a command line of Snakemake names cannot be read.

    Snakemake reads them before the Snakefile, without limits: a file of a kilobyte may keep it
    busy for ever. profiles/default calls this before that.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", action="extend", default=[])
    parser.add_argument("--config", "-C", nargs="*", action="extend", default=[])
    try:
        given, _ = parser.parse_known_args(arguments)
    except (argparse.ArgumentError, SystemExit):
        return  # Snakemake says so
    try:
        study_settings(given.configfile, given.config)
    except ConfigError as error:
        sys.exit(f"the study cannot run as it is:\n{error}{_swallowed(given.configfile)}")


def _swallowed(files: Sequence[str]) -> str:
    """What to do where targets stand behind --configfile, which takes every name that follows."""
    targets = [file for file in files if Path(file).suffix not in _SETTINGS]
    if not targets:
        return ""
    first = " ".join(targets)
    return f"\nIs this what to make? Then write it before the option: {first} --configfile ..."
