"""Your own training: results/own_training/results.json."""

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
    """Facts about the user's step."""

    parameters: Many
    """Trainable parameters."""
    optimizer: str
    """Class of the optimizer."""
    optimizer_fused: bool
    """Whether it uses torch's fused kernel."""
    clip_norm: Amount
    """Largest allowed gradient norm; 0 does not clip."""
    loss_place: tuple[str, Few] | None
    """File and line of the loss function; null if it is not in a user's file."""
    optimizer_place: tuple[str, Few] | None
    """The same for the function that creates the optimizer."""


class ShortTraining(Schema):
    """Short trainings, one for each seed."""

    losses: list[list[Loss]]
    """Mean loss of each step, by seed."""
    norms: list[list[Magnitude | None]]
    """Gradient norm at each step, by seed; null if it was not finite."""
    initial_sha256: list[str]
    """Digest of the initial weights, by seed."""
    facts: StepFacts
    """Facts about the step."""
    wide: bool
    """Whether it was computed in 64 bits."""


class OwnCertificate(Schema):
    """Whether a training with techniques still trains the user's model."""

    word: CertificateWord
    """same, different, undecided, or none if there was no training to compare."""
    reason: str
    """The finding, with bounds."""
    loss: Amount | None = None
    """Largest relative difference of a loss."""
    weights: Amount | None = None
    """Largest difference of a tensor of final weights, relative to its change during training."""
    rounding: Amount | None = None
    """The same distance from the 64-bit training, divided by that of the user's own step; null
    if it cannot compute in 64 bits."""


class TriedTogether(Schema):
    """Techniques that were tried, one or several at a time."""

    techniques: list[Technique]
    """Their names."""
    status: Status
    """ok, or why it could not be tried."""
    reason: str | None
    """Why the status is not ok."""
    certificate: OwnCertificate
    """Whether it is the same training."""
    speed: Interval | None
    """Throughput relative to the user's own step."""
    verdict: Verdict | None
    """Verdict on the throughput."""
    peak_memory_bytes: Bytes | None = None
    """Largest peak of any of its processes in the timed sessions; null if not timed."""
    note: str = ""
    """Caveats about those sessions: other programs, a drifting clock, waiting for input."""


class OwnTrainingResult(Schema):
    """Techniques tried on your own training, and those recommended."""

    factory: str
    """package.module:function."""
    status: Status
    """Status of the user's own step: ok, or why nothing could be tried."""
    reason: str | None
    """Why the status is not ok."""
    facts: StepFacts | None
    """Facts about the step."""
    own_loss: list[Loss]
    """Mean loss of each step of the short training with the first seed."""
    own_rounding: Amount | None
    """Distance of the user's own step in 32 bits from that in 64 bits, measured as for weights;
    null if it cannot compute in 64 bits."""
    wide_reason: str | None
    """Why it cannot compute in 64 bits, if so."""
    tried: list[TriedTogether]
    """Everything that was tried, individual techniques first."""
    recommended: list[Technique]
    """The fastest combination that is the same training and FASTER; empty for the unchanged
    step."""
    own_peak_memory_bytes: Bytes | None = None
    """Largest peak of the user's own step in the sessions; null if nothing was timed."""
    words: list[str] = Field(default_factory=list)
    """Changes to make in the script that are missing from its diff."""
    provenance: Provenance
    """Where this record comes from."""


class OwnProfile(Schema):
    """Device activity during a few steps."""

    name: Literal["own", "recommended"]
    """The unchanged step, or the recommended one."""
    techniques: list[Technique]
    """Techniques added to the user's own step."""
    status: Status
    """ok, or why there is no profile."""
    reason: str | None
    """Why the status is not ok."""
    breakdown: Breakdown | None
    """The recorded breakdown; null if nothing was recorded."""


class OwnProfiles(Schema):
    """results/own_training/profiles.json: where the time of the user's step goes."""

    profiles: list[OwnProfile]
    """The unchanged step, and the recommended one if there is one."""
    provenance: Provenance
    """Where this record comes from."""
