"""Short trainings of the user's step, one folder for each, and what they certify."""

from collections.abc import Sequence
from pathlib import Path

import safetensors.numpy

from schemas.config.equivalence import LOOKS, Statistical
from schemas.config.own_training import Technique
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from schemas.results.own_training import OwnCertificate, ShortTraining, TriedTogether
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.own_training.order import OwnShortOrder
from transformer_core.own_training.own_certificate import Short, certify
from transformer_core.own_training.techniques import equivalence_of, with_techniques
from transformer_core.run.statuses import Outcome
from transformer_core.run.supervisor import attempt

NO_CERTIFICATE = OwnCertificate(word="none", reason="there was no training to compare")


class ShortTrainings:
    """Makes them below ``folder``, the user's own step first."""

    def __init__(self, own: RunSpec, devices: int, folder: Path, command: str) -> None:
        self.own_spec, self.devices, self.folder, self.command = own, devices, folder, command
        self.seeds = Statistical(kind="statistical").seeds
        self.own: Short | None = None
        self.wide: Short | None = None
        self.wide_reason: str | None = None

    def begin(self) -> Outcome | None:
        """Train the user's own step, in 32 and in 64 bits; how the first one ended if not well."""
        found = self._train(self.own_spec, "own", LOOKS * self.seeds)
        if isinstance(found, Outcome):
            return found
        self.own = found
        wide = self._train(self.own_spec, "own-64-bits", 1, wide=True)
        if isinstance(wide, Outcome):
            self.wide_reason = wide.reason
        else:
            self.wide = wide
        return None

    def certified(self, names: Sequence[Technique]) -> TriedTogether:
        """The certificate of techniques together, not timed yet."""
        assert self.own is not None, "begin comes first"
        tried = TriedTogether(
            techniques=list(names),
            status="ok",
            reason=None,
            certificate=NO_CERTIFICATE,
            speed=None,
            verdict=None,
        )
        try:
            spec = with_techniques(self.own_spec, self.devices, names)
        except Unsupported as error:
            return tried.model_copy(update={"status": "unsupported", "reason": str(error)})
        equivalence = equivalence_of(names)
        statistical = isinstance(equivalence, Statistical)
        for look in range(1, LOOKS + 1 if statistical else 2):
            seeds = look * self.seeds if statistical else 1
            found = self._train(spec, spec.variant, seeds)
            if isinstance(found, Outcome):
                return tried.model_copy(update={"status": found.status, "reason": found.reason})
            certificate = certify(found, self.own, self.wide, equivalence)
            log.info("%s: %s, %s", spec.variant, certificate.word, certificate.reason)
            if certificate.word != "undecided":
                break
        return tried.model_copy(update={"certificate": certificate})

    def _train(self, spec: RunSpec, name: str, seeds: int, wide: bool = False) -> Short | Outcome:
        output = self.folder / name
        output.mkdir(parents=True, exist_ok=True)
        order = OwnShortOrder(
            spec=spec, output=output, command=self.command, seeds=seeds, wide=wide
        )
        outcome = attempt(order, output / "short.json")
        if outcome is not None:
            return outcome
        initial, final = (
            safetensors.numpy.load_file(output / f"{file}.safetensors")
            for file in ("initial", "weights")
        )
        return Short(read_record(output / "short.json", ShortTraining), initial, final)
