"""The options that the command lines of measurements share."""

import argparse
from pathlib import Path


def job_parser(module: str, description: str, output: str) -> argparse.ArgumentParser:
    """A parser of --spec, --data, --output and --log-file; ``output`` says what the third names."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of the variant")
    add_data(parser)
    parser.add_argument("--output", type=Path, required=True, help=output)
    add_log_file(parser)
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    """--data, the corpus."""
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")


def add_log_file(parser: argparse.ArgumentParser) -> None:
    """--log-file."""
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
