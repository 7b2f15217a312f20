"""``audit-training train.py [its arguments]``: does any training script do what it says?"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from schemas.base import seconds_of
from schemas.config.run_spec import ScriptTask
from schemas.errors import ConfigError
from transformer_core.audit.flow import Answer, Audit, CannotAudit
from transformer_core.audit.relations import RELATIONS
from transformer_core.common.files import write_text
from transformer_core.tune.isolation import TooLarge
from transformer_core.tune.job import program_of

USAGE = """examples:
  audit-training train.py --batch-size 8
  audit-training --report audit.md -m my_package.train
  audit-training torchrun --nproc-per-node 2 train.py

The exit status is 0 if nothing is wrong, 1 if a relation is broken, and 2 if the script cannot be
audited."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="audit-training",
        description="Test the relations that a training has to itself: the same run twice, a batch "
        "in parts, other samples, later tokens, padding, gradients, updates, formats, evaluation. "
        "The script is run as it is, and its folder is left as it is.",
        epilog=USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--time", default="150s", help="time to spend at most, about (default: 150s)"
    )
    parser.add_argument("--report", type=Path, help="write the answer to a file as Markdown")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="the script and its arguments, as after python"
    )
    given = parser.parse_args(arguments)
    if not given.command:
        parser.error("which script? For instance: audit-training train.py")
    return given


def headline(answer: Answer) -> str:
    """The answer in one sentence."""
    if answer.status == "failed":
        return f"{answer.command} cannot be audited: {answer.reason}"
    tested = sum(r["status"] != "untested" for r in answer.relations.values())
    wrong = sum(f.sure for f in answer.findings)
    if wrong:
        return f"{wrong} thing{'s are' if wrong > 1 else ' is'} wrong with {answer.command}."
    return f"Nothing is wrong with {answer.command}, as far as {tested} relations can tell."


def text(answer: Answer) -> str:
    """The answer for a terminal."""
    lines = [headline(answer)]
    for finding in answer.findings:
        word = "WRONG" if finding.sure else "LOOK"
        lines += ["", f"{word}  {RELATIONS[finding.relation]}", f"  where   {finding.where}"]
        lines += [f"  cause   {finding.cause}"]
        if finding.measured is not None and finding.allowed is not None:
            lines.append(
                f"  found   {finding.measured:.3g}, where {finding.allowed:.3g} is allowed"
            )
        lines.append(f"  remedy  {finding.remedy}")
    if answer.relations:
        lines += ["", "Relations:"]
        for name, found in answer.relations.items():
            how = f" ({found['how']})" if found["how"] else ""
            lines.append(f"  {found['status']:<9} {RELATIONS[name]}{how}")
        lines += ["", f"{answer.steps} steps in {answer.seconds:.0f} s."]
    return "\n".join(lines)


def markdown(answer: Answer) -> str:
    """The answer on one page of Markdown."""
    lines = [f"# `{answer.command}`", "", headline(answer), ""]
    for finding in answer.findings:
        lines += [
            f"- **{'Wrong' if finding.sure else 'Worth a look'}: {finding.where}.** "
            f"{finding.cause[:1].upper()}{finding.cause[1:]}. Remedy: {finding.remedy}."
        ]
    if answer.relations:
        lines += ["", "| relation | | how, or why not |", "|---|---|---|"]
        for name, found in answer.relations.items():
            lines.append(f"| {RELATIONS[name]} | {found['status']} | {found['how']} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Audit a script; the exit status."""
    given = parse(arguments)
    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="audit-"))

    def say(words: str) -> None:
        gone = time.monotonic() - began
        left = max(0.0, seconds_of(given.time) - gone)
        print(f"{gone:4.0f} s  {words} (at most {left:.0f} s left)", file=sys.stderr, flush=True)

    try:
        program = program_of(ScriptTask(kind="script", command=tuple(given.command)))
        answer = Audit(program, place, say, seconds_of(given.time)).run()
    except (CannotAudit, ConfigError, TooLarge, ValueError) as error:
        title = " ".join(given.command)
        answer = Answer(title, "failed", str(error), seconds=time.monotonic() - began)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if given.report is not None:
        write_text(given.report, markdown(answer))
    print(json.dumps(answer.to_json(), indent=1) if given.json else text(answer))
    return {"clean": 0, "wrong": 1, "failed": 2}[answer.status]


if __name__ == "__main__":
    sys.exit(main())
