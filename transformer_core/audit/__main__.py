"""``audit-training train.py [its arguments]``: does a training script do what it says?"""

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from schemas.base import seconds_of
from transformer_core.audit.relations import RELATIONS, Answer
from transformer_core.common.markdown import cell
from transformer_core.tune import driver

USAGE = """examples:
  audit-training train.py --batch-size 8
  audit-training --report audit.md -m my_package.train
  audit-training torchrun --nproc-per-node 2 train.py

The exit status is 0 if nothing is wrong, 1 if a relation is broken, and 2 if the script cannot be
audited."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    made = driver.parser(
        "audit-training",
        "Find silent errors in a training script, without a reference. The parts of a training must\n"
        "agree with one another: two runs, a batch and its parts, gradients and updates, training\n"
        "and evaluation. Neither the script nor its folder is changed.",
        "150s",
        USAGE,
    )
    return driver.with_script(made, arguments)


def headline(found: Answer) -> str:
    if found.status == "failed":
        return f"{found.command} cannot be audited: {found.reason}"
    tested = sum(r["status"] != "untested" for r in found.relations.values())
    wrong = sum(f.sure for f in found.findings)
    if wrong:
        return f"{wrong} thing{'s are' if wrong > 1 else ' is'} wrong with {found.command}."
    return (
        f"Nothing is wrong with {found.command}, as far as the {tested} tested relations can tell."
    )


def text(found: Answer) -> str:
    lines = [headline(found)]
    for finding in found.findings:
        word = "WRONG" if finding.sure else "LOOK"
        lines += ["", f"{word}  {RELATIONS[finding.relation]}", f"  where   {finding.where}"]
        lines += [f"  cause   {finding.cause}"]
        if finding.measured is not None and finding.allowed is not None:
            lines.append(
                f"  found   {finding.measured:.3g}, where {finding.allowed:.3g} is allowed"
            )
        lines.append(f"  remedy  {finding.remedy}")
    if found.relations:
        tested, untested = ["", "Tested:"], ["", "Not tested:"]
        for name, each in found.relations.items():
            how = f" ({each['how']})" if each["how"] else ""
            if each["status"] == "untested":
                untested.append(f"  {RELATIONS[name]}{how}")
            else:
                tested.append(f"  {each['status']:<6}  {RELATIONS[name]}{how}")
        lines += [*tested, *untested]
        lines += ["", f"{found.steps} steps in {found.seconds:.0f} s."]
    return "\n".join(lines)


def markdown(found: Answer) -> str:
    lines = [f"# `{found.command}`", "", cell(headline(found)), ""]
    for finding in found.findings:
        lines.append(
            f"- **{'Wrong' if finding.sure else 'Worth a look'}: {cell(finding.where)}.** "
            f"{cell(finding.cause[:1].upper() + finding.cause[1:])}. Remedy: {cell(finding.remedy)}."
        )
    if found.relations:
        lines += ["", "| relation | | how, or why not |", "|---|---|---|"]
        for name, each in found.relations.items():
            lines.append(f"| {RELATIONS[name]} | {each['status']} | {cell(each['how'])} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    driver.end_like_ctrl_c()
    with tempfile.TemporaryDirectory(prefix="audit-", ignore_cleanup_errors=True) as place:
        try:
            program = driver.program_given(given.command)
            from transformer_core.audit.flow import Audit  # imports torch, which takes seconds

            budget = seconds_of(given.time)
            found = Audit(program, Path(place), driver.progress(budget), budget).run()
        except driver.REFUSED as error:
            found = Answer(" ".join(given.command), "failed", driver.without_logs(error, place))
        except KeyboardInterrupt:
            driver.shown("\nStopped.")
            return 130
    driver.answer(given, asdict(found), text(found), markdown(found))
    return {"clean": 0, "wrong": 1, "failed": 2}[found.status]


if __name__ == "__main__":
    sys.exit(main())
