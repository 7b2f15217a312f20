"""The speed of preparing and feeding data, against other libraries: ``python -m benchmarks.data``.

Install them first: ``pip install -c constraints.txt -e ".[benchmarks]"``. A library that is missing
is left out, with the reason. All contenders take turns on the same machine, once in every round.
"""

import argparse
import sys
from itertools import chain
from pathlib import Path

import torch

from benchmarks import _feeding, _tokenizing
from benchmarks._rounds import Row, show, write_csv


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns that count (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    parser.add_argument("--output", type=Path, help="CSV file of the table")
    _tokenizing.add_options(parser)
    _feeding.add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[Row] = []
    for row in chain(_tokenizing.measure(options), _feeding.measure(options)):
        rows.append(row)
        # Written after every row, so that an error in a later part loses nothing.
        if options.output is not None:
            write_csv(rows, options.output)
    if not rows:
        parser.error("nothing to measure: give --multi30k, --pairs, --shards or --study-data")
    print(show(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
