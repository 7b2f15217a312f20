"""The page of a check of a GPU: ``python -m transformer_core.report.gpu_check_page``."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ConfigError
from schemas.results.gpu_check import AttentionTruths, DeviceFacts, GpuCheck, GpuTests, Outcome
from transformer_core.common.files import write_text
from transformer_core.common.records import read_record
from transformer_core.report.page import environment

WORDS: dict[Outcome, str] = {
    "held": "held",
    "not_held": "did not hold",
    "unsupported": "unsupported",
    "failed": "failed",
}


def render(
    found: GpuCheck, tests: GpuTests, attention: AttentionTruths, device: DeviceFacts
) -> str:
    """The page as HTML, with everything needed for remote debugging."""
    counts = Counter(check.outcome for check in found.checks)
    return (
        environment()
        .get_template("gpu_check_page.html")
        .render(
            found=found,
            words=WORDS,
            counts=[(WORDS[outcome], counts[outcome]) for outcome in WORDS if counts[outcome]],
            tests=tests,
            attention=attention,
            device=device,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.report.gpu_check_page",
        description="Write the passed and failed checks of a GPU, with reasons, as one HTML file.",
    )
    parser.add_argument("--checks", type=Path, required=True, help="checks.json")
    parser.add_argument("--tests", type=Path, required=True, help="tests.json")
    parser.add_argument("--attention", type=Path, required=True, help="attention.json")
    parser.add_argument("--device", type=Path, required=True, help="device.json")
    parser.add_argument("--output", type=Path, required=True, help="the page")
    given = parser.parse_args(arguments)
    try:
        page = render(
            read_record(given.checks, GpuCheck),
            read_record(given.tests, GpuTests),
            read_record(given.attention, AttentionTruths),
            read_record(given.device, DeviceFacts),
        )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    write_text(given.output, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
