"""Attacks the project for as long as you like, and counts how the cases end:

    python -m tests.attacks studies --cases 10000 --output studies.json
    python -m tests.attacks damages --cases 1000 --results results --output damages.json
    python -m tests.attacks calls --cases 60 --results results --output calls.json
    python -m tests.attacks kills --cases 100 --output kills.json

The exit status is 1 if a case ended as a fault of the project. The seed determines all cases.
`damages` and `calls` work on a copy of the results of a finished study, such as the small one
`tests/attacks/killed_study.yaml`.
"""

import argparse
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.attacks import bad_studies, damages, failing_calls, kills
from transformer_core.common.files import write_text
from transformer_core.trace.arguments import count

CASES = {"studies": 10_000, "damages": 1_000, "calls": 60, "kills": 10}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("campaign", choices=CASES)
    parser.add_argument("--cases", type=count, help=f"number of cases (default: {CASES})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the cases (default: 1)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="a finished study")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    campaign, seed = options.campaign, options.seed
    cases = options.cases or CASES[campaign]
    with tempfile.TemporaryDirectory() as folder:
        match campaign:
            case "studies":
                tally = bad_studies.run(cases, seed, Path("config"))
            case "damages":
                tally = damages.run(cases, seed, options.results)
            case "calls":
                tally = failing_calls.run(cases, seed, options.results)
            case _:
                tally = kills.run(cases, seed, Path(folder))
    write_text(options.output, tally.to_json())
    print(f"{tally.total.total():,} cases: {dict(tally.total)}")
    return int(tally.faults > 0)


if __name__ == "__main__":
    raise SystemExit(main())
