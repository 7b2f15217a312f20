"""The options that the command lines of measurements share."""

import argparse
from pathlib import Path


def add_data(parser: argparse.ArgumentParser) -> None:
    """--data, the corpus."""
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")


def add_log_file(parser: argparse.ArgumentParser) -> None:
    """--log-file."""
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
