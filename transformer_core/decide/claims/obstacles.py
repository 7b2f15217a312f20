"""Why a test of a claim says nothing here: what the study lacks, and what is no evidence."""

from collections.abc import Iterable, Sequence

from schemas.config.claims import CertificateTest, ClaimTest, Needs, TrendTest, variants_of
from schemas.results import Repeat
from transformer_core.decide.claims.findings import Findings
from transformer_core.decide.study_results import StudyResults


def obstacle_to(test: ClaimTest, needs: Sequence[Needs], findings: Findings) -> str | None:
    """Why a test says nothing here, or nothing."""
    results = findings.results
    repeats = [repeat for result in results.variants.values() for repeat in result.repeats]
    for need in needs:
        if unmet := _unmet(need, [repeat for repeat in repeats if repeat.status == "ok"]):
            return unmet
    if isinstance(test, TrendTest):
        return None
    named = dict.fromkeys(variants_of(test).values())
    if missing := [name for name in named if name not in results.variants]:
        return f"the study does not run {' and '.join(missing)} (add to its variants)"
    ended = [results.variants[name] for name in named if results.variants[name].status != "ok"]
    if ended:
        first = ended[0]
        reason = first.reason or "no reason was given"
        return f"{first.variant} ended {first.status}: {reason}"
    return None


def doubt_about(test: ClaimTest, results: StudyResults) -> str | None:
    """Why the numbers of the variants are no evidence: one does not train what it should."""
    if isinstance(test, CertificateTest):
        return None
    for name in variants_of(test).values():
        certificate = results.certificates[name]
        if certificate.status == "not_equivalent":
            return f"{name} does not train the same model: {certificate.reason}"
        if certificate.status not in ("equivalent", "different"):
            return f"{name} has no certificate that it trains the same model"
    return None


def _unmet(needs: Needs, repeats: Iterable[Repeat]) -> str | None:
    topologies = [(r.topology.device, _devices(r)) for r in repeats if r.topology is not None]
    fitting = [count for device, count in topologies if needs.device in (None, device)]
    if max(fitting, default=0) >= needs.devices:
        return None
    if not topologies:
        return "no run of the study ended well"
    noun = {"cuda": "GPU", "cpu": "CPU device", None: "device"}[needs.device]
    wanted = f"needs {needs.devices} {noun}s" if needs.devices > 1 else f"needs a {noun}"
    if not fitting:
        kinds = {"cuda": "GPUs", "cpu": "the CPU"}
        return f"{wanted}; the study ran on {kinds[topologies[0][0]]}"
    return f"{wanted}; no run of the study used more than {max(fitting)}"


def _devices(repeat: Repeat) -> int:
    """Devices of a run; a process of DataParallel drives several."""
    assert repeat.topology is not None
    return max(repeat.topology.world_size, len({(m.rank, m.device) for m in repeat.memory}))
