"""Attack the project for as long as you like, and count how it takes it:

    python -m tests.attacks studies --cases 10000 --output studies.json
    python -m tests.attacks damages --cases 1000 --results results --output damages.json
    python -m tests.attacks calls --cases 60 --results results --output calls.json
    python -m tests.attacks kills --cases 100 --output kills.json

The exit status is 1 if a case ended as a fault of the project. Cases follow from the seed. `damages`
and `calls` work on a copy of the results of a finished study; a small one is
`tests/attacks/killed_study.yaml`.
"""

import argparse
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.attacks import bad_studies, damages, failing_calls, kills
from tests.attacks.tally import Tally
from transformer_core.common.files import write_text

CASES = {"studies": 10_000, "damages": 1_000, "calls": 60, "kills": 10}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("campaign", choices=CASES)
    parser.add_argument("--cases", type=int, help=f"how many; by default {CASES}")
    parser.add_argument("--seed", type=int, default=1, help="seed of the cases (default: 1)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="a finished study")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    tally = _attack(
        options.campaign, options.cases or CASES[options.campaign], options.seed, options.results
    )
    write_text(options.output, tally.to_json())
    print(f"{tally.total.total():,} cases: {dict(tally.total)}")
    return int(tally.faults > 0)


def _attack(campaign: str, cases: int, seed: int, results: Path) -> Tally:
    match campaign:
        case "studies":
            return bad_studies.run(cases, seed, Path("config"))
        case "damages":
            return damages.run(cases, seed, results)
        case "calls":
            return failing_calls.run(cases, seed, results)
        case _:
            with tempfile.TemporaryDirectory() as folder:
                return kills.run(cases, seed, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
