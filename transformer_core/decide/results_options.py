"""Command-line options that locate the results of a study."""

import argparse
from pathlib import Path

from transformer_core.decide.study_results import StudyResults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the location of the results, the same for every job that reads them all."""
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--study", type=Path, help="the study as JSON (default: study.json in the results)"
    )
    parser.add_argument(
        "--comparisons",
        type=Path,
        help="comparisons with the baseline (default: comparisons.json in the results)",
    )


def from_arguments(options: argparse.Namespace) -> StudyResults:
    """The results named by the options of :func:`add_arguments`."""
    return StudyResults(options.results, options.study, options.comparisons)
