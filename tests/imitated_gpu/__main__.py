"""Runs a command on an imitated GPU: ``python -m tests.imitated_gpu snakemake --cores 2 ...``."""

import os
import sys

from tests.imitated_gpu.environment import imitated_gpu

if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    os.execvpe(sys.argv[1], sys.argv[1:], os.environ | imitated_gpu())
