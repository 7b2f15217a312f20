"""A training of the user's own: results/own_training/results.json."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema
from schemas.config.own_training import Technique
from schemas.results.common import Amount, Bytes, Few, Interval, Loss, Magnitude, Many, Status
from schemas.results.comparisons import Verdict
from schemas.results.profiles import Breakdown
from schemas.results.runs import Provenance

CertificateWord = Literal["same", "different", "undecided", "none"]


class StepFacts(Schema):
    """What is to be known of the user's step."""

    parameters: Many
    """Trainable parameters."""
    optimizer: str
    """Class of the optimizer."""
    optimizer_fused: bool
    """Whether it takes torch's fused kernel."""
    clip_norm: Amount
    """Largest norm of the gradient; 0 does not clip."""
    loss_place: tuple[str, Few] | None
    """File and line of the function of the loss; null where it is not in a file of the user's."""
    optimizer_place: tuple[str, Few] | None
    """The same of the function of the optimizer."""


class ShortTraining(Schema):
    """Short trainings, one for each seed."""

    losses: list[list[Loss]]
    """Mean loss of each step, by seed."""
    norms: list[list[Magnitude | None]]
    """Norm of the gradient at each step, by seed; null where it was not finite."""
    initial_sha256: list[str]
    """Digest of the first weights, by seed."""
    facts: StepFacts
    """What is to be known of the step."""
    wide: bool
    """Whether it was computed in 64 bits."""


class OwnCertificate(Schema):
    """Whether a training with techniques is that of the user."""

    word: CertificateWord
    """same, different, undecided, or none where there was no training to compare."""
    reason: str
    """What was found, with bounds."""
    loss: Amount | None = None
    """Largest relative difference of a loss."""
    weights: Amount | None = None
    """Largest difference of a tensor of final weights, relative to what training changed in it."""
    rounding: Amount | None = None
    """The same distance from the training in 64 bits, divided by that of the user's own step; null
    where that cannot compute in 64 bits."""


class TriedTogether(Schema):
    """Techniques that were tried, one or several at a time."""

    techniques: list[Technique]
    """Their names."""
    status: Status
    """ok, or why it could not be tried."""
    reason: str | None
    """Of a status that is not ok."""
    certificate: OwnCertificate
    """Whether it is the same training."""
    speed: Interval | None
    """Throughput, relative to that of the user's own step."""
    verdict: Verdict | None
    """What that says."""
    peak_memory_bytes: Bytes | None = None
    """Largest peak of any of its processes in the sessions that timed it; null where it was not
    timed."""
    note: str = ""
    """What a reader must know of those sessions: other programs, a drifting clock, waiting for
    input."""


class OwnTrainingResult(Schema):
    """What was tried of a training of the user's own, and what it should take."""

    factory: str
    """package.module:function."""
    status: Status
    """Of the user's own step: ok, or why nothing could be tried."""
    reason: str | None
    """Of a status that is not ok."""
    facts: StepFacts | None
    """What is to be known of the step."""
    own_loss: list[Loss]
    """Mean loss of each step of the short training, with the first seed."""
    own_rounding: Amount | None
    """Distance of the user's own step in 32 bits from that in 64 bits, as weights; null where it
    cannot compute in 64 bits."""
    wide_reason: str | None
    """Why not, where it cannot."""
    tried: list[TriedTogether]
    """All that was tried, each by itself first."""
    recommended: list[Technique]
    """The fastest of what is the same training and FASTER; empty for the step as it is."""
    own_peak_memory_bytes: Bytes | None = None
    """Largest peak of the user's own step in the sessions; null where nothing was timed."""
    words: list[str] = Field(default_factory=list)
    """What to change in the script that its diff does not say."""
    provenance: Provenance
    """Where this comes from."""


class OwnProfile(Schema):
    """What the devices do in a few steps."""

    name: Literal["own", "recommended"]
    """The step as it is, or the one that is recommended."""
    techniques: list[Technique]
    """What it has that the user's own step has not."""
    status: Status
    """ok, or why there is no profile."""
    reason: str | None
    """Of a status that is not ok."""
    breakdown: Breakdown | None
    """What was recorded; null where nothing was."""


class OwnProfiles(Schema):
    """results/own_training/profiles.json: where the time of the user's step goes."""

    profiles: list[OwnProfile]
    """The step as it is, and the recommended one where there is one."""
    provenance: Provenance
    """Where this comes from."""
