"""The audit of a script, in four stages.

1. **Twice.** One copy of the script is watched, another is left alone. Are they equal to the last bit?
2. **Watched.** Losses, gradients, updates, modes and schedules are tested in each step.
3. **Probed.** The calls of the model in one step are repeated with changes that must not matter.
4. **Continued.** The watched copy trains for a while longer, through evaluations if it has any.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from transformer_core.audit.losses import uneven
from transformer_core.audit.relations import (
    EAGER,
    FLOOR,
    KEPT,
    NO_TIME,
    OWN,
    RELATIONS,
    TWIN,
    Answer,
    Notes,
)
from transformer_core.tune.causes import some
from transformer_core.tune.certificate import certify, trust
from transformer_core.tune.coordinator import SHOWN, TOO_LATE, Program, Side, SideEnded, session
from transformer_core.tune.driver import Say, observed
from transformer_core.tune.records import Record
from transformer_core.tune.techniques.technique import NOISE

MODULE = "transformer_core.audit.side"
MOST_RECORDED = 6
LEAST_STEPS = 2
PROBE_SECONDS = 30.0, 60.0  # the least and the most for repeating the calls of one step


class Audit:
    """An audit of a program, in about ``budget`` seconds. Its files are below ``folder``."""

    def __init__(self, program: Program, folder: Path, say: Say, budget: float) -> None:
        self.program, self.folder, self.say, self.budget = program, folder, say, budget
        self.began = time.monotonic()
        self.steps: int | None = None  # after which the script ends, if it was seen to end
        self._notes: list[Notes] = []

    def run(self) -> Answer:
        """The answer. Raises CannotObserve."""
        facts = observed(self, self._session, LEAST_STEPS)
        if facts[0]["compiled"]:
            remedy = "try TORCH_COMPILE_BACKEND aot_eager, or compile smaller parts"
            self._without("compiled", Side(EAGER, module=MODULE), "its compiler", remedy)
        if any(f["audit"]["recomputes"] for f in facts):
            remedy = "keep the results of these layers, or find what differs when they run again"
            kept = Side(KEPT, techniques=("kept_activations",))
            self._without("recomputed", kept, "recomputation", remedy)
        return self._answer(facts)

    def _session(self) -> list[dict[str, Any]]:
        """Records both copies, probes one and continues the other; the facts of each rank of the
        latter."""
        self._notes = []
        least, most = PROBE_SECONDS
        probed = max(least, min(most, self.budget))
        sides = [Side(name, module=MODULE, probe_seconds=probed) for name in (OWN, TWIN)]
        with session(self.program, sides, self.folder / "sessions" / "audit", say=self.say) as run:
            for side in sides:
                self.say(f"waiting for the first step of {SHOWN[side.name]}")
                run.facts(side.name)
            first = run.steps(OWN, 1, record=True)
            count = max(3, min(MOST_RECORDED, 1 + int(0.1 * self.budget / max(first, 1e-3))))
            if self.steps is not None:
                count = min(count, self.steps - 1)
            self.say(f"running {count} steps of two copies")
            run.steps(TWIN, 1, record=True)
            if count > 1:  # The batch of the first step was read before it began.
                further = [run.steps(side.name, count - 1, record=True) for side in sides]
                first = max(first, further[0] / (count - 1))
            own, twin = (Record.read(run.records(side.name)) for side in sides)
            self._twice(own, twin)
            self.say("repeating the calls of one step")
            ended = _at_the_end(lambda: run.steps(TWIN, 1))
            facts = [ended] if ended else run.facts_of_ranks(TWIN)
            self._notes += [Notes.of(f["audit"]["notes"]) for f in facts]
            run.drop(TWIN)
            watched = run.facts_of_ranks(OWN)
            self.say("continuing the training, to see an evaluation")
            run.deadlines[OWN] = max(self.began + self.budget, time.monotonic() + 5)
            try:
                last = _at_the_end(partial(self._on, run, first))
                if last is None:
                    watched = run.facts_of_ranks(OWN)
                else:
                    watched[last["audit"]["rank"]] = last
            except SideEnded as error:
                if error.why != TOO_LATE:
                    raise
                self._notes.append(Notes(untested={"evaluation": NO_TIME}))
            self._notes += [Notes.of(f["audit"]["notes"]) for f in watched]
            self._ranks(watched, own)
            return watched

    def _on(self, run: Any, seconds: float) -> None:
        """Lets the watched copy train for a tenth of the budget, at most 2 seconds at a time."""
        left = self.began + self.budget - time.monotonic()
        end = time.monotonic() + min(0.1 * self.budget, max(1.0, left - 5))
        while (began := time.monotonic()) < end:
            turn = max(1, min(50, int(2 / max(seconds, 1e-3))))
            run.steps(OWN, turn)
            seconds = (time.monotonic() - began) / turn

    def _twice(self, own: Record, twin: Record) -> None:
        notes = Notes()
        same, words = trust(own, twin)
        notes.holds("repeat", words)
        if not same:
            notes.found(
                "repeat",
                "the script",
                words,
                "seed every source of random numbers, and look for uninitialized memory or for "
                "sums whose order varies",
                sure=False,
            )
        self._notes.append(notes)

    def _ranks(self, facts: list[dict[str, Any]], own: Record) -> None:
        """Compares the ranks of a data-parallel training with each other."""
        notes = Notes()
        self._notes.append(notes)
        if len(facts) < 2:
            notes.cannot("ranks", "the script runs on one rank")
            return
        audits = [f["audit"] for f in facts]
        steps = min(len(a["rows"]) for a in audits)
        for step in range(steps):
            calls = [[(r[2], r[3]) for r in a["rows"][step]] for a in audits]
            places = [(r[0], r[1]) for r in audits[0]["rows"][step]]
            if len({len(c) for c in calls}) > 1:
                continue
            notes.holds("ranks", f"rows, random numbers and weights of {len(facts)} ranks")
            for number, (kind, place) in enumerate(places):
                uneven(f"{kind} at {place}", [c[number] for c in calls], "ranks", notes)
        # Each rank has another part of a shard, and parts that begin with zeros begin equal.
        if apart := [name for name in _apart(own) if name not in audits[0]["sharded"]]:
            notes.found(
                "ranks",
                some(apart),
                "all ranks begin with the same values of it, but then their values differ: its "
                "gradient is not averaged over the ranks",
                "wrap the model in DistributedDataParallel over all ranks, or average every "
                "gradient before the step",
            )
        passes = zip(*(a["shares"] for a in audits), strict=False)
        for shares in passes:
            ranks, seeds, epochs = map(list, zip(*shares, strict=True))
            drawn = {*zip(seeds, epochs, strict=True)}
            if len(drawn) > 1 or len({*ranks}) < len(shares):
                notes.found(
                    "ranks",
                    "DistributedSampler",
                    f"the ranks' shares of the data overlap: seeds {seeds}, epochs {epochs}, ranks "
                    f"{ranks}",
                    "give all ranks the same seed and epoch, and each rank its own number",
                )
        digests = {a["random"] for a in audits}
        if audits[0]["dropout"] and audits[0]["random"] and len(digests) == 1:
            notes.found(
                "ranks",
                "the random numbers",
                "all ranks begin with the same random numbers, so dropout drops the same "
                "elements of all their samples",
                "add the rank to the seed after the model is made",
            )

    def _without(self, relation: str, side: Side, what: str, remedy: str) -> None:
        """Compares the script with a copy without its compiler, or without recomputation."""
        self.say(f"comparing with the script without {what}")
        sides = [Side(OWN), side, Side(FLOOR, noise=NOISE["float32"])]
        notes = Notes()
        self._notes.append(notes)
        try:
            with session(
                self.program, sides, self.folder / "sessions" / relation, say=self.say
            ) as run:
                for each in sides:
                    run.steps(each.name, 3, record=True)
                own, other, floor = (Record.read(run.records(s.name)) for s in sides)
                if gone := run.facts(side.name)["without_effect"]:
                    notes.cannot(relation, gone[0])
                    return
        except SideEnded as error:
            notes.cannot(relation, str(error))
            return
        found = certify(own, other, [floor], "float32")
        if found.word == "undecided":
            notes.cannot(relation, found.reason)
            return
        notes.holds(relation, f"gradients and updates of 3 steps without {what}")
        if found.word == "different":
            notes.found(
                relation,
                found.worst or "the model",
                f"the script trains a different model than it does without {what}: {found.reason}",
                remedy,
                found.gradient,
                found.floor,
            )

    def _answer(self, facts: list[dict[str, Any]]) -> Answer:
        notes = Notes.together(self._notes)
        relations: dict[str, dict[str, str]] = {}
        for relation in RELATIONS:
            sure = {f.sure for f in notes.findings if f.relation == relation}
            status, how = "broken" if True in sure else "look", notes.tested.get(relation, "")
            if not sure:
                status = "holds" if relation in notes.tested else "untested"
            if status == "untested":
                seen = NOT_SEEN.get(relation, "nothing to test it on")
                how = notes.untested.get(relation) or seen
            relations[relation] = {"status": status, "how": how}
        order = list(RELATIONS)
        findings = sorted(notes.findings, key=lambda f: (not f.sure, order.index(f.relation)))
        return Answer(
            command=self.program.title,
            status="wrong" if any(f.sure for f in findings) else "clean",
            findings=findings,
            relations=relations,
            steps=max(f["audit"]["steps"] for f in facts),
            seconds=time.monotonic() - self.began,
        )


NOT_SEEN = {
    "parts": "no loss of torch is computed in several parts of a step",
    "recomputed": "no layer is computed again in the backward pass",
    "compiled": "the script does not use torch.compile",
    "schedule": "no schedule of torch moved the rate in the steps that ran",
    "evaluation": "no loss of torch was computed without gradients in the steps that ran",
    "axes": "the script's code changes no shape of tensors with two or more axes",
    "state": "the script saved no optimizer whose rate follows a schedule, and loaded no weights",
    "data": "no DataLoader of torch is used",
    "loss": "no loss function of torch that is known here is called",
    "zero": "no step after the first has a backward pass",
}


def _apart(own: Record) -> list[str]:
    """Tensors that are equal on all ranks before the first step, but not after the last."""
    found = []
    first = own.ranks[0]
    steps = [int(key.partition(" ")[0]) for key in first if " weight " in key]
    for name in [k.removeprefix("0 weight ") for k in first if k.startswith("0 weight ")]:
        same, later = (
            len({r.get(f"{s} weight {name}", np.empty(0)).tobytes() for r in own.ranks}) == 1
            for s in (0, max(steps))
        )
        if same and not later:
            found.append(name)
    return found


def _at_the_end(work: Callable[[], Any]) -> dict[str, Any] | None:
    """The last facts of a script if it reaches its end during ``work``; otherwise None."""
    try:
        work()
    except SideEnded as error:
        if error.why or "facts" not in error.said:
            raise
        return dict(error.said["facts"])
    return None
