"""Judges claims by the results of a study.

Each test of a claim is judged on its own; together they give one verdict: REFUTED if any test
contradicts the claim; else UNDECIDED if any test is undecided; else PARTLY if every direction holds
but a size does not; else REPRODUCED. Tests that are impossible on this machine or in this study are
left out and named; a claim without any possible test is NOT_TESTABLE.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from schemas.config.claims import Claim, Claims
from schemas.results import ClaimResult, ClaimVerdict, Evidence
from transformer_core.common.digests import write_result
from transformer_core.common.endings import reproducing_command
from transformer_core.common.job import Job
from transformer_core.decide.claim_tests import judge
from transformer_core.decide.study_results import StudyResults

REASONS: dict[ClaimVerdict, str] = {
    "REPRODUCED": "Every test that could be made agrees",
    "PARTLY": "The direction is as claimed, the size is not",
    "REFUTED": "A test contradicts it",
    "UNDECIDED": "No test contradicts it, but not all of them are settled",
    "NOT_TESTABLE": "No test could be made here",
}


def verdict_of(evidence: Sequence[Evidence]) -> ClaimVerdict:
    outcomes = {item.outcome for item in evidence} - {"not_testable"}
    if not outcomes:
        return "NOT_TESTABLE"
    if "contradicted" in outcomes:
        return "REFUTED"
    if "undecided" in outcomes:
        return "UNDECIDED"
    return "PARTLY" if "size_differs" in outcomes else "REPRODUCED"


def judge_claim(name: str, claim: Claim, results: StudyResults, command: str) -> ClaimResult:
    evidence = [judge(test, [claim.needs, test.needs], results) for test in claim.tests]
    verdict = verdict_of(evidence)
    return ClaimResult(
        claim=name,
        statement=claim.statement,
        source=claim.source,
        verdict=verdict,
        reason=_reason(verdict, evidence),
        evidence=evidence,
        command=command,
    )


def _reason(verdict: ClaimVerdict, evidence: Sequence[Evidence]) -> str:
    missing = [item for item in evidence if item.outcome == "not_testable"]
    if verdict == "NOT_TESTABLE":
        first, *others = dict.fromkeys(item.reason for item in missing)
        return f"{first}; further reasons next to the tests" if others else first
    made = len(evidence) - len(missing)
    left_out = f" ({made} of {len(evidence)})" if missing else ""
    return f"{REASONS[verdict]}{left_out}"


class ClaimsJob(Job):
    """Tests claims against the results of a study: reproduced, refuted, partly, undecided or not
    testable here, each with its numbers."""

    kind = "claims"

    claims: Claims  # the claims by id
    results: Path = Path("results")  # folder of the results, with families.json
    output: Path

    def run(self, log_file: Path | None) -> None:
        results = StudyResults(self.results)
        command = reproducing_command(self.output)
        judged = [judge_claim(name, claim, results, command) for name, claim in self.claims.items()]
        text = json.dumps([item.model_dump(mode="json") for item in judged], indent=1)
        write_result(self.output, text + "\n")
