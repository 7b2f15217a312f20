"""The options by which jobs are told where the results of a study lie."""

import argparse
from pathlib import Path

from transformer_core.decide.study_results import StudyResults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say where the results are, the same for every job that reads them all."""
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
    """The results that the options of :func:`add_arguments` name."""
    return StudyResults(options.results, options.study, options.comparisons)
