"""From a script to an answer: trust, screen, compare, change, verify.

1. **Trust**: the script runs twice. Does it do the same, to the last bit?
2. **Screen**: every technique that applies is tried in a session, with a certificate for each.
3. **Compare**: the faster techniques, alone and together, run against the script in several sessions
   with other seeds. Ratios come only from these sessions, so luck in the screening does not count.
4. **Change and verify**: the answer becomes a diff, and the changed script runs against the original,
   with its own certificate.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, exp
from pathlib import Path
from typing import Any

import psutil
import torch

from schemas.config.measurement import Comparing
from schemas.results import LogRatio
from transformer_core.machine.hardware import usable_memory_bytes
from transformer_core.parallel import nvml
from transformer_core.tune.answer import (
    LEFT_OUT,
    Answer,
    Tried,
    certified_in_words,
    in_words,
    listed,
    useful,
)
from transformer_core.tune.certificate import repeats, spoiled, trust
from transformer_core.tune.choice import Choice
from transformer_core.tune.coordinator import SHOWN, Program, Session, Side, SideEnded, session
from transformer_core.tune.driver import CannotObserve, Say, observed, why_ended
from transformer_core.tune.identity import digest, identity, keep
from transformer_core.tune.profiling import Traces, profiled, traces_of
from transformer_core.tune.records import Record
from transformer_core.tune.results import (
    GOOD_SESSIONS,
    LEAST_SESSIONS,
    over_rounds,
    set_ratios,
    together,
)
from transformer_core.tune.sessions import (
    AGAIN,
    OOM,
    OWN,
    Budget,
    Measured,
    Outcome,
    Plan,
    Sessions,
    floors,
    status_of,
)
from transformer_core.tune.source import Source, repository_of
from transformer_core.tune.techniques import TECHNIQUES, environment_of

MOST_SIDES = 9
CONTEXT = 600 * 2**20
"""Bytes that a process on a GPU takes besides its tensors: CUDA's context, and kernels."""
FIRST = ("bf16", "fused_optimizer", "tf32", "channels_last", "kept_activations", "allocator_kept")
"""The techniques with the largest gains: a small session of these gives the first certificates."""
SESSIONS = 4  # sessions of a comparison: with four, Student's t has three degrees of freedom
VERIFICATIONS = 3  # sessions of the changed script against the original
ANY = Side("any", files={Path(): ""})
"""A change of unknown rounding, for the cost of a session that is not planned yet."""
LEAST_STEPS = 12  # a session needs a few steps to compare and one for each of up to seven rounds


class Tuning:
    """Finds out what makes a program faster, in about ``budget`` seconds. Its files are below ``folder``."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        say: Say,
        budget: float = 300.0,
        techniques: Sequence[str] | None = None,
        verify: bool = True,
        record: int | None = None,
        margin: float = Comparing().margin,
        code: str = "",
    ) -> None:
        self.program, self.folder, self._say = program, folder, say
        self.code = code  # digest of this project's code: sessions of another one are not used
        self.budget, self.verify, self.margin = Budget(budget), verify, margin
        fits = [n for n, t in TECHNIQUES.items() if program.factory or not t.divides]
        self.names = list(techniques or (name for name in fits if TECHNIQUES[name].usual))
        self.facts_given = {
            "devices": program.devices,
            "factory": program.factory is not None,
            "folder": str(program.directory),
            "script": str(program.script),
            "head": program.head and f"0:{program.head}",
            "named": list(techniques or ()),
        }
        self.choice = Choice(margin)
        self.room = MOST_SIDES  # changes of a session; fewer once memory was too short for more
        self.screened = self.repeats = 0  # sessions in which techniques were tried, or compared
        self.earlier: list[list[LogRatio]] = []  # ratios of all comparisons, by session
        self.looks = 0  # comparisons that decided whether there is another one
        self.lacking = 0.0  # seconds for which comparisons had no time
        self.ends: float | None = None
        """Seconds after which the answer is expected; None before the first session."""
        self.asked_record = record
        self.record = 6
        """Steps that certificates compare: as many as requested, or as few seconds allow."""
        self.steps: int | None = None  # steps after which the script ends, if it was seen to end

    def say(self, text: str) -> None:
        """Report progress, with the remaining time."""
        left = None if self.ends is None else self.ends - self.budget.gone
        if left is not None:
            text += f" (about {in_time(left)} left)" if left > 0 else " (longer than expected)"
        self._say(text)

    def session(self, plan: Plan, stage: str) -> Outcome:
        found = self.sessions.run(plan, self._progress(stage))
        if all(side.status not in (LEFT_OUT, OOM) for side in found.sides.values()):
            steps = self.sessions.timed_steps(plan)
            self.budget.learn(len(plan.sides), steps, found.took, self._imports(plan.sides))
        return found

    def cost(self, changes: Sequence[Side], rounds: int) -> float:
        """Seconds for a session of the script, its floors and these changes."""
        steps = self.sessions.timed_steps(Plan("", [], 0, rounds, self.record))
        sides = 1 + len(self.floors(changes)) + len(changes)
        return self.budget.cost(sides, steps, self._imports(changes))

    def _imports(self, sides: Sequence[Side]) -> bool:
        """Whether one of them needs a new process, which imports torch; all others are forks."""
        facts = self.sessions.facts
        return any(environment_of(side.techniques, facts) for side in sides)

    def floors(self, changes: Sequence[Side]) -> list[Side]:
        """The copies of the script with which the certificates of these changes are judged."""
        return floors(changes, self.sessions.facts.get("short"))

    def comparison(self, changes: Sequence[Side]) -> float:
        """Seconds for a session that compares these changes."""
        return self.cost(changes, self._rounds(len(changes)))

    def _rounds(self, sides: int) -> int:
        """Number of rounds of such a session: the script and its equal side take turns too."""
        return self.sessions.rounds(sides + 2, 6 if self.budget.step < 1 else 4, self.record)

    def expect(self, seconds: float) -> None:
        """Expect the remaining sessions to take so many seconds, or all the time that is left."""
        self.ends = self.budget.gone + max(0.0, min(seconds, self.budget.left))

    def run(self) -> Answer:
        """The answer. Raises CannotObserve."""
        answer = self.trust()
        self.say(f"run twice: {answer.trust}")
        answer.words = {name: TECHNIQUES[name].words for name in self.names}
        try:
            self._search(answer)
        except SideEnded as error:  # of the unchanged script
            why = why_ended(error, self.program, answer.steps_needed)
            raise CannotObserve(why) from None
        return answer

    def _search(self, answer: Answer) -> None:
        """Finds out what makes the script faster. Raises SideEnded if the script itself fails."""
        waiting = self._screen(answer, self._applicable(answer))
        more = True
        while more and (candidates := self._chosen(answer)):
            more = self._compare(answer, candidates, bool(waiting))
            waiting = self._screen(answer, waiting, last=not more)
        self._change(answer)
        for side in waiting:
            answer.tried.append(Tried((side.name,), LEFT_OUT, "for lack of time"))
            answer.left_out.append(side.name)
        names = dict.fromkeys(name for each in self._chosen(answer) for name in each)
        answer.uncompared = [name for name in names if name not in self.choice.compared]
        if answer.uncompared:
            answer.left_out.append(f"the comparison of {listed(answer.uncompared)}")
        self._profile(answer)
        answer.seconds = self.budget.gone
        if answer.left_out:
            answer.needs = minutes(max(self._needed(answer), 1.5 * self.budget.seconds))
            first = self.budget.gone + self.budget.report + self.cost([ANY], 4)
            answer.least = minutes(max(first, self.budget.seconds + 1))

    def _needed(self, answer: Answer) -> float:
        """Seconds in which nothing would be left out, as far as costs are known by now."""
        left = sum(tried.status == LEFT_OUT for tried in answer.tried)
        room = self._most_sides(answer)
        found = self.budget.gone + self.budget.report + self.lacking
        found += sum(self.cost([ANY] * min(room, left - at), 4) for at in range(0, left, room))
        more = len(self._chosen(answer)) if self.choice.compared else 3
        if more:
            found += SESSIONS * self.comparison([ANY] * more)
        if answer.patched is None:
            found += VERIFICATIONS * self.verify * self.comparison([ANY])
        return found

    def _progress(self, stage: str) -> Say:
        return lambda text: self.say(f"{stage}: {text}")

    def trust(self) -> Answer:
        """Runs the script twice, compares the runs, and collects facts about the script."""
        return observed(self, self._run_twice, LEAST_STEPS)

    def _run_twice(self) -> Answer:
        began, program = self.budget.gone, self.program
        self.say("run twice: starting")
        sides = [Side(OWN), Side("twin", profiled=True)]
        with session(program, sides, self.folder / "sessions" / "trust", say=self.say) as run:
            for side in sides:
                self.say(f"run twice: waiting for the first step of {SHOWN[side.name]}")
                run.facts(side.name)
            # A repetition finds the server of the first attempt.
            self.budget.server = max(self.budget.server, run.waited)
            self.budget.start = self.budget.gone - began - run.waited
            recorded = self.budget.gone
            first = run.steps(OWN, 1, record=True)
            count = self.asked_record or max(2, min(self.record, 1 + int(10 / max(first, 1e-3))))
            if self.steps is not None:
                count = min(count, self.steps // 4)
            run.steps("twin", 1, record=True)
            for side in sides:
                run.steps(side.name, count - 1, record=True)
            records = [Record.read(run.records(side.name)) for side in sides]
            self.budget.record = (self.budget.gone - recorded) / len(sides)
            timed = max(2, min(10, int(2 / max(first, 1e-3))))
            if self.steps is not None:
                timed = min(timed, self.steps // 4)
            step_seconds = run.steps(OWN, timed) / timed
            facts = run.facts(OWN) | self.facts_given | {"waits": run.facts("twin")["waits"]}
            if run.overlaid:
                facts["top"] = str(repository_of(program.directory))
            self.traces = self._traces(run, "twin", "own", first)
        if (step := spoiled(records[0])) is not None:
            raise CannotObserve(
                f"the weights of {program.title} are NaN after step {step}, so nothing can be "
                "compared; remedy: look for 0 / 0, the logarithm or the root of 0, or a rate that is too high"
            )
        same, words = trust(*records)
        self.record = count
        self.budget.step = step_seconds
        now = identity(self.program, self.asked_record, self.code)
        if changed := keep(now, self.folder):
            self.say(f"everything is measured again, because of a change: {listed(changed)}")
        end = time.monotonic() + self.budget.left
        sessions = self.folder / "sessions"
        self.sessions = Sessions(
            program, sessions, digest(now), facts, step_seconds, self.steps, end
        )
        self.sessions.repeats = repeats(*records)
        return Answer(
            command=program.title,
            reproducible=same,
            trust=words,
            facts=facts,
            step_seconds=step_seconds,
            steps_taken=count + timed,
            steps_needed=max(LEAST_STEPS, count + 1 + 7 * facts["cycle"]),
            memory=facts["memory"],
        )

    def _profile(self, answer: Answer) -> None:
        """Reads the profile of the script, and profiles the recommendation in a separate process."""
        answer.profiles.append(profiled((), self.traces))
        if not (names := answer.recommended):
            return
        if self.budget.start + self.budget.server > self.budget.left:
            answer.left_out.append("the profile of the recommendation")
            return
        self.say("profiling the recommendation")
        side = Side("recommended", names, profiled=True)
        logs = self.folder / "sessions" / "profile"
        try:
            with session(self.program, [side], logs, 0, answer.facts, self.say) as run:
                run.deadlines[side.name] = self.sessions.deadline
                run.facts(side.name)
                run.steps(side.name, 3)
                traces = self._traces(run, side.name, side.name, answer.step_seconds)
        except SideEnded as error:
            traces = [], status_of(error)[1]
        answer.profiles.append(profiled(names, traces))

    def _traces(self, run: Session, side: str, name: str, step_seconds: float) -> Traces:
        """Profiles a few steps of a side, and keeps the traces below ``profiles``."""
        few = step_seconds >= 2 or self.steps is not None
        return traces_of(run, side, 1 if few else 3, self.folder / "profiles" / name)

    def _applicable(self, answer: Answer) -> list[Side]:
        """The techniques to try. The answer gets the reasons against the others."""
        usable: list[Side] = []
        has = {TECHNIQUES[name].group for name in self.program.applied}
        for name in self.names:
            technique = TECHNIQUES[name]
            why = technique.obstacle(answer.facts)
            if technique.group in has:
                why = f"task.applied already has a technique of the group {technique.group}"
            if why is None:
                usable.append(Side(name, (name,)))
            else:
                answer.tried.append(Tried((name,), "unsupported", why))
        return usable

    def _screen(self, answer: Answer, waiting: list[Side], last: bool = False) -> list[Side]:
        """Tries changes as long as there is time, and returns the others. Unless these are the ``last``
        sessions, time is kept for a comparison."""
        slow = [side for side in waiting if TECHNIQUES[side.name].slow]
        first = [side for side in waiting if side.name in FIRST]
        rest = [side for side in waiting if side not in slow and side not in first]
        room = self._most_sides(answer)
        groups = [
            part[at : at + room] for part in (first, rest, slow) for at in range(0, len(part), room)
        ]
        longer = sum(self.cost(group, self._trial_rounds(group)) for group in groups)
        ample = longer + self._whole_comparison() <= self.budget.left
        self.sessions.certified = partial(self._certified, answer)
        postponed: list[Side] = []
        while groups:
            group = groups.pop(0)
            if len(group) > self.room:
                groups[:0] = [group[: self.room], group[self.room :]]
                continue
            tight = group[0] in slow and self.budget.left < 0.6 * self.budget.seconds
            kept = [] if tight else self._kept(answer, last)
            rounds = self._trial_rounds(group) if ample else self._least_rounds
            fits, later = self._fitting(group, rounds, kept)
            postponed += group[fits:]
            if fits:
                expected = sum(self.cost(each, rounds) for each in [group, *groups])
                self.expect(expected + later)
                if again := self._try(answer, group[:fits], rounds, later):
                    groups.insert(0, again)
        # If nothing pays, no comparison needs the time that was kept for it.
        while last or not self.choice.pays(answer):
            kept = self._kept(answer, last)
            most = min(room, self.room)
            fits, later = self._fitting(postponed[:most], self._least_rounds, kept)
            if not fits:
                break
            self.expect(self.cost(postponed[:fits], self._least_rounds) + later)
            again = self._try(answer, postponed[:fits], self._least_rounds, later)
            postponed = [*again, *postponed[fits:]]
        if not last:
            sides, rounds, later = self._second_look(answer)
            if sides:
                self.expect(self.cost(sides, rounds) + later)
                self._try(answer, sides, rounds, later)
        return postponed

    def _second_look(self, answer: Answer) -> tuple[list[Side], int, float]:
        """The changes to try once more, which gained nothing although their rounds exclude no gain, the rounds, and
        the seconds to leave for a comparison: the first one whole, a later one as short as possible."""
        possible = sorted(filter(self.choice.may_gain, answer.tried), key=lambda t: -t.gain)
        sides = [Side(t.name, t.techniques) for t in possible[: self._most_sides(answer)]]
        rounds = self._trial_rounds(sides)
        if self.choice.compared:
            later = LEAST_SESSIONS * self.comparison([ANY])
            later += self._verifying() * bool(answer.recommended)
        else:
            later = self._whole_comparison()
        fits, _ = self._fitting(sides, rounds, [later])
        return sides[:fits], rounds, later

    def _whole_comparison(self) -> float:
        """Seconds of a comparison that leaves out nothing, and of running the changed script."""
        return SESSIONS * self.comparison([ANY] * 3) + self._verifying()

    @property
    def _least_rounds(self) -> int:
        """Rounds in which changes are tried at least."""
        return 4 if self.budget.step < 2 else 2

    def _trial_rounds(self, changes: Sequence[Side]) -> int:
        """Rounds in which these changes are tried if time allows: a third of the session's time, as fewer
        save little."""
        seconds = self.cost(changes, 0) / self.budget.pace / 2
        return self.sessions.rounds(len(changes) + 2, self._least_rounds, self.record, seconds)

    def _kept(self, answer: Answer, last: bool) -> list[float]:
        """Seconds that trying changes leaves for what follows: the first of these with which any change
        still fits. That is a good comparison, and a run of the changed script once something gains. If
        nothing does, the shortest comparison or none will do: certificates alone are useful, too."""
        pays = not last and self.choice.pays(answer)
        run = self._verifying() * (pays or bool(answer.recommended))
        sessions = [0] if last else [GOOD_SESSIONS] if pays else [GOOD_SESSIONS, LEAST_SESSIONS, 0]
        return [run + each * self.comparison([ANY]) for each in sessions]

    def _verifying(self) -> float:
        """Seconds to keep for running the changed script."""
        return LEAST_SESSIONS * self.comparison([ANY]) * self.verify

    def _try(self, answer: Answer, group: list[Side], rounds: int, later: float) -> list[Side]:
        """Tries changes in one session, after which ``later`` seconds must remain if a change pays. All of
        them were tried before, or none: then the sessions count together. Returns those to try again, with
        fewer others, because memory was too short for all."""
        self.screened += 1
        before = len(self.choice.looks_at.get(group[0].name, []))
        sides = [Side(OWN), *self.floors(group), *group]
        plan = Plan(f"screen-{self.screened}", sides, 500 * before, rounds, self.record)
        stage = f"trying {listed([s.name for s in group])}{' again' * before}"
        if not self.choice.pays(answer) and not answer.recommended:
            later = 0.0
        outcome = self._judged(plan, stage, answer, first=not before, later=later)
        lacking = [side for side in group if outcome.sides[side.name].status == OOM]
        again = lacking if len(group) > 1 and not before else []
        if again:
            self._shrink(len(group), f"{listed([s.name for s in again])} will be tried again, with")
        elif not lacking and any(each.status == OOM for each in answer.tried):
            # A change that takes much memory alone may have been the reason.
            self.room = min(MOST_SIDES, 2 * self.room)
        for side in group:
            looks = self.choice.looks_at.setdefault(side.name, [])
            if side in again or (before and outcome.sides[side.name].status in (LEFT_OUT, OOM)):
                continue
            looks.append(outcome)
            tried = together(side, looks)
            ratio = over_rounds(side.name, looks)
            tried.screened = exp(ratio.estimate) if ratio else None
            answer.tried = [t for t in answer.tried if t.techniques != side.techniques]
            answer.tried.append(tried)
            if tried.status == LEFT_OUT:
                answer.left_out.append(tried.name)
            noise = over_rounds(AGAIN, looks)
            self.choice.noise[tried.name] = abs(noise.estimate) if noise else 0.0
            if tried.certificate and answer.first_verdict_seconds is None:
                answer.first_verdict_seconds = self.budget.gone
            self.say(f"{tried.name}: {in_words(tried)}")
        return again

    def _shrink(self, changes: int, what: str) -> None:
        """Lets sessions have at most half as many ``changes``, for which memory was too short."""
        self.room = changes // 2
        self.say(
            f"there is too little memory for {changes} changes at the same time: {what} at most {self.room} in a session"
        )

    def _fitting(
        self, changes: Sequence[Side], rounds: int, kept: Sequence[float]
    ) -> tuple[int, float]:
        """How many of the ``changes`` fit into a session, and the first of the ``kept`` seconds that then
        remain."""
        for later, count in itertools.product(kept, range(len(changes), 0, -1)):
            if self.cost(changes[:count], rounds) + later <= self.budget.left:
                return count, later
        return 0, 0.0

    def _certified(self, answer: Answer, name: str, certificate: dict[str, Any]) -> None:
        """Reports a certificate before its session is over."""
        if answer.first_verdict_seconds is None:
            answer.first_verdict_seconds = self.budget.gone
        self.say(f"{name}: {certified_in_words(certificate)}")

    def _judged(
        self, plan: Plan, stage: str, answer: Answer, first: bool = True, later: float = 0.0
    ) -> Outcome:
        """The outcome of a session, in which slow changes are left out if they are not ready when
        ``later`` seconds remain. Unless it repeats a ``first`` one with other seeds, differences that
        dropout masks may explain are judged without dropout."""
        self.sessions.later = later
        outcome = self.session(plan, stage)
        suspects = [
            side
            for side in plan.sides
            if (outcome.sides[side.name].certificate or {}).get("word") == "different"
        ]
        if not first or not suspects or not answer.facts["dropout"]:
            return outcome
        sides = [Side(OWN), *self.floors(suspects), *suspects]
        again = replace(plan, name=f"{plan.name}-no-dropout", sides=sides, rounds=0, dropout=False)
        found, why = {}, "had no time"
        if self.cost(suspects, 0) < self.budget.left:
            found = self.sessions.run(again, self._progress("comparing without dropout")).sides
            why = "failed"
        for side in suspects:
            before = outcome.sides[side.name].certificate
            assert before is not None
            reason = (
                f"{before['reason']}; different dropout masks may explain it, and a comparison without "
                f"dropout {why}"
            )
            undecided = before | {"word": "undecided", "reason": reason}
            measured = found.get(side.name, Measured())
            outcome.sides[side.name].certificate = measured.certificate or undecided
        return outcome

    def _most_sides(self, answer: Answer) -> int:
        """Sides that fit into the memory of the machine together with the script and its floors."""
        peak = answer.facts["memory"]["peak"]
        if answer.facts["device"] == "cuda":
            # By NVML, as torch would take memory of the GPU for this process, too.
            free = nvml.memory_by_uuid("free").get(answer.facts.get("gpu") or "")
            free = torch.cuda.mem_get_info()[0] if free is None else free
            peak += CONTEXT
        else:
            peak *= max(answer.facts["world"], self.program.devices)  # its ranks share the memory
            # A container's own limit; what it uses includes the cache of files, which does not count.
            free = min(psutil.virtual_memory().available, usable_memory_bytes())
        return max(1, min(self.room, int(0.8 * free / max(peak, 1)) - 4))

    def _chosen(self, answer: Answer) -> list[tuple[str, ...]]:
        """The combinations to compare, as many as fit into memory."""
        return self.choice.combinations(answer)[: self._most_sides(answer)]

    def _compare(self, answer: Answer, candidates: list[tuple[str, ...]], waiting: bool) -> bool:
        """Several sessions with other seeds, and intervals that hold for all ratios at once. Returns
        whether there may be another comparison: of techniques still ``waiting`` to be tried, say."""
        sides = [Side("+".join(c), c) for c in candidates]

        def seconds(sessions: int) -> float:
            return sessions * self.comparison(sides)

        verifying = self._verifying()
        # More sessions, which make intervals narrow, are better than more candidates.
        for fewest, sessions in ((2, SESSIONS), (1, GOOD_SESSIONS)):
            while len(sides) > fewest and self.budget.left < seconds(sessions) + verifying:
                del sides[-1]
        kept = verifying * bool(answer.recommended)
        if self.budget.left < seconds(LEAST_SESSIONS) + kept:
            return False
        outcomes: list[Outcome] = []
        rounds = self._rounds(len(sides))
        for number in range(1, SESSIONS + 1):
            if number > LEAST_SESSIONS and self.budget.left < (
                seconds(1) + verifying * (number > GOOD_SESSIONS)
            ):
                names = dict.fromkeys(name for side in sides for name in side.techniques)
                left = f"{SESSIONS + 1 - number} of {SESSIONS} sessions with {listed([*names])}"
                answer.left_out.append(left)
                self.lacking += seconds(SESSIONS + 1 - number)
                break
            self.expect(seconds(SESSIONS + 1 - number) + verifying)
            everyone = [Side(OWN), *self.floors(sides), *sides]
            self.repeats += 1
            name, seed = f"compare-{self.repeats}", 1000 * self.repeats
            plan = Plan(name, everyone, seed, rounds, self.record)
            stage = f"comparing, session {number} of {SESSIONS}"
            later = seconds(max(0, LEAST_SESSIONS - number))
            outcome = self._judged(plan, stage, answer, number == 1, later)
            if outcome.short_of_memory and number > LEAST_SESSIONS:
                break  # Something else takes the memory by now.
            if outcome.short_of_memory and len(sides) > 1:
                self._shrink(len(sides), "comparing")
                return self._compare(answer, candidates[: len(sides) // 2], waiting)
            outcomes.append(outcome)
            if outcome.short_of_memory:
                break
            if number <= LEAST_SESSIONS:
                sides = [s for s in sides if outcomes[-1].sides[s.name].status != LEFT_OUT]
            if not sides:
                return False
        self.choice.compared |= {name for side in sides for name in side.techniques}
        # Speeds must not decide whether there is another comparison: they were not looked at yet.
        pays = self.choice.pays(answer)
        another = kept + LEAST_SESSIONS * self.comparison([ANY])
        another += (not pays) * self.cost([ANY], rounds)
        more = (pays or waiting) and self.budget.left > another
        more = more or bool(self._second_look(answer)[0])
        self.looks += more
        self._recommend(answer, [together(side, outcomes) for side in sides], outcomes)
        return more

    def _recommend(self, answer: Answer, found: list[Tried], outcomes: list[Outcome]) -> None:
        """Adds what a comparison ``found`` to the answer, and recommends the best of all comparisons."""
        noise = set_ratios(found, outcomes, self.margin, self.earlier, self.looks)
        for tried in found:
            before = answer.find(tried.techniques)
            if before is not None:
                tried.screened = before.screened
                answer.tried.remove(before)
            answer.tried.append(tried)
            self.say(f"{tried.name}: {in_words(tried)}")
        certified = [t for t in answer.tried if useful(t) and t.verdict == "FASTER"]
        best = max(certified, key=lambda t: t.ratio or 0, default=None)
        if best is not None:
            # Prefer fewer changes if more of them gain nothing.
            simple = [
                t for t in certified if (t.ratio or 0) * (1 + self.margin) >= (best.ratio or 0)
            ]
            best = min(simple, key=lambda t: (len(t.techniques), -(t.ratio or 0)))
            answer.recommended = best.techniques
        if best is None or best in found:
            answer.noise = noise

    def _change(self, answer: Answer) -> None:
        """Writes the answer as a diff, and runs the changed script against the original."""
        if not answer.recommended:
            return
        source = Source.of(answer.facts)
        in_diff = []
        for name in answer.recommended:
            if TECHNIQUES[name].edit(source, answer.facts):
                in_diff.append(name)
            else:
                answer.lines += TECHNIQUES[name].lines(answer.facts)
        answer.diff, answer.base = source.diff(), str(source.base)
        if not answer.diff or not self.verify:
            return
        outside = tuple(
            name for name in answer.recommended if environment_of((name,), answer.facts)
        )
        side = Side("changed", outside, files=source.files())
        outcomes: list[Outcome] = []
        for number in range(1, VERIFICATIONS + 1):
            each = self.comparison([side])
            if self.budget.left < each:  # Even one session gives a certificate.
                break
            self.expect(each * (VERIFICATIONS + 1 - number))
            everyone, seed = [Side(OWN), *self.floors([side]), side], 10_000 + 1000 * number
            plan = Plan(f"verify-{number}", everyone, seed, self._rounds(1), self.record)
            stage = "running the changed script"
            outcome = self._judged(plan, stage, answer, first=number == 1)
            if outcome.sides[side.name].status == LEFT_OUT:
                break
            if outcome.short_of_memory and outcomes:
                break
            outcomes.append(outcome)
        if not outcomes:
            answer.left_out.append("the run of the changed script")
            return
        tried = together(side, outcomes)
        tried.techniques = (side.name,)
        set_ratios([tried], outcomes, self.margin)
        tried.techniques = tuple(in_diff)
        answer.patched = tried
        self.say(f"the changed script: {in_words(tried)}")


def minutes(seconds: float) -> str:
    """A round duration of at least so many seconds, for the option --time."""
    needed = ceil(seconds / 60)
    steps = (5, 10, 15, 20, 30, 45, 60, 90)
    return f"{next((step for step in steps if step >= needed), 60 * ceil(needed / 60))}min"


def in_time(seconds: float) -> str:
    """A time to wait, rounded."""
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{max(5, 5 * round(seconds / 5))} s"
