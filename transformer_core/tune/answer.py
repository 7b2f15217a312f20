"""The answer about a script: its data, and its text for a terminal, a pull request and a notebook."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from transformer_core.common.markdown import cell

FAILED = "failed.json"
"""File that replaces the answer if the training cannot be observed, and says why."""
LEFT_OUT = "left out"  # status of a technique for which there was no time
NOT_TRIED = ("unsupported", LEFT_OUT)
DISTURBED = (
    "The script is not even as fast as itself: something disturbed these sessions. So no change is "
    "called faster or slower; repeat this on a quieter machine."
)
"""Said if sessions were :func:`disturbed`."""
UNHELD = "the changed script was not shown to train the same model: do not apply the diff as it is."
SHARE = 0.9  # largest share of a device's memory that a batch may fill


@dataclass
class Tried:
    """A technique or a combination, with its result."""

    techniques: tuple[str, ...]
    status: str = "ok"
    reason: str = ""
    certificate: dict[str, Any] | None = None
    screened: float | None = None  # ratio of speeds from the screening session alone
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    memory: dict[str, int] | None = None  # bytes: the peak of its steps, and its known parts

    @property
    def name(self) -> str:
        """Its name among the sides."""
        return "+".join(self.techniques)

    @property
    def gain(self) -> float:
        """The best estimate of its ratio of speeds; 1 if there is none."""
        return self.ratio or self.screened or 1.0

    @property
    def interval(self) -> str:
        return f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass
class Profiled:
    techniques: tuple[str, ...]
    breakdown: dict[str, Any] | None = None  # its Breakdown; None if nothing was recorded
    reason: str = ""  # why there is no breakdown


@dataclass
class Answer:
    command: str
    status: str = "ok"  # ok, or failed if the script cannot be observed
    reason: str = ""
    reproducible: bool = False
    trust: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    step_seconds: float = 0.0
    steps_taken: int = 0  # steps that the script took when it ran twice
    steps_needed: int = 0  # steps that it must take in a session
    tried: list[Tried] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)  # the change that each technique makes
    recommended: tuple[str, ...] = ()
    noise: dict[str, float] = field(default_factory=dict)
    """Ratio and interval of the script against itself."""
    diff: str = ""
    base: str = ""  # the folder that its paths are relative to
    lines: list[str] = field(default_factory=list)
    patched: Tried | None = None  # the changed script against the original
    memory: dict[str, int] | None = None  # memory of the script itself
    profiles: list[Profiled] = field(default_factory=list)
    """Profiles of the script itself and of the recommendation."""
    left_out: list[str] = field(default_factory=list)  # steps for which there was no time
    uncompared: list[str] = field(default_factory=list)  # techniques that lacked a comparison
    needs: str = "10min"  # a time in which nothing would be left out
    least: str = "5min"  # a time in which the first technique would be tried
    first_verdict_seconds: float | None = None
    seconds: float = 0.0

    def find(self, techniques: Sequence[str]) -> Tried | None:
        """The result of a combination; None if it was not tried."""
        return next((each for each in self.tried if each.techniques == tuple(techniques)), None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def best(self) -> Tried | None:
        """The recommended combination; None to keep the script unchanged."""
        return self.find(self.recommended) if self.recommended else None

    @property
    def held(self) -> bool:
        """Whether the changed script trains the same model, as far as it was run."""
        return self.patched is None or useful(self.patched)

    def _repr_markdown_(self) -> str:
        return markdown(self)

    @classmethod
    def read(cls, file: Path | str) -> "Answer":
        """The answer in ``file``, or in the folder of a study. A notebook displays it."""
        file = Path(file)
        if file.is_dir():
            file = file / "results/tune/answer.json"
        return TypeAdapter(cls).validate_json(file.read_bytes())


def disturbed(low: float, high: float) -> bool:
    """Whether something disturbed the sessions: the interval of the script against itself excludes 1."""
    return not low <= 1 <= high


def useful(tried: Tried) -> bool:
    """Whether it runs and trains the same model."""
    return tried.status == "ok" and (tried.certificate or {}).get("word") == "same"


def in_words(tried: Tried) -> str:
    """The result on one line."""
    if tried.status != "ok":
        return f"{tried.status}: {tried.reason}"
    parts = []
    if tried.ratio is not None:
        parts.append(f"{tried.interval} times as fast")
    elif tried.screened is not None:
        parts.append(f"about {tried.screened:.2f} times as fast")
    if tried.certificate:
        parts.append(certified_in_words(tried.certificate))
    return ", ".join(parts)


def certified_in_words(certificate: dict[str, Any]) -> str:
    """The certificate in a few words, with its reason."""
    word = {"same": "the same training", "different": "NOT the same training"}
    return f"{word.get(certificate['word'], 'undecided')} ({certificate['reason']})"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def headline(answer: Answer) -> str:
    """The answer in one sentence."""
    if answer.status != "ok":
        return f"{answer.command} cannot be tuned: {answer.reason}"
    if best := answer.best:
        names = listed(best.techniques)
        but = "" if answer.held else f" But {UNHELD}"
        return f"{best.interval} times as fast, and the same training, with {names}.{but}"
    how = f"(--time {answer.needs}, or time: {answer.needs} in the study)"
    more_time = f"Give it more time {how}"
    found = [
        t for t in answer.tried if useful(t) and t.verdict == "UNDECIDED" and (t.high or 0) > 1
    ]
    if all(t.ratio is None for t in answer.tried) or answer.uncompared:
        found += [t for t in answer.tried if useful(t) and t.ratio is None and t.gain > 1]
    found.sort(key=lambda t: -t.gain)
    likely = found[0] if found else None
    if likely is not None and likely.ratio is not None:
        remedy = f"{more_time}, or a quieter machine."
        if not answer.left_out:
            remedy = (
                "Nothing was left out for lack of time: use a quieter machine, or a training "
                "of more steps."
            )
        others = [t.name for t in found[1:] if t.ratio is not None]
        too = f" Undecided, too: {listed(others)}." if others else ""
        return (
            "Nothing is certain yet: the most promising change that trains the same model, "
            f"{listed(likely.techniques)}, is {likely.interval} times as fast.{too} {remedy}"
        )
    if likely is not None:
        return (
            f"Nothing is certain yet: {listed(likely.techniques)} trains the same model, and was "
            f"about {likely.screened:.2f} times as fast in one session. {more_time}."
        )
    ran_short = [t.name for t in answer.tried if t.status == "oom"]
    if ran_short and not any(t.status == "ok" for t in answer.tried):
        return (
            "Nothing was measured: there is too little memory for the script, the copies of it that measure "
            f"rounding, and {ran_short[0]} at the same time. End other programs that need memory, or give the script a "
            "smaller batch or model."
        )
    if left := sum(t.status == LEFT_OUT for t in answer.tried):
        if all(t.status in NOT_TRIED for t in answer.tried):
            few = ""
            if answer.steps_taken < answer.steps_needed:
                few = (
                    f" Of the {answer.steps_needed} steps that a session needs, only "
                    f"{answer.steps_taken} were seen: if the script ends earlier, let it train longer."
                )
            first = f"{answer.least} it is tried, with " * (answer.least != answer.needs)
            return (
                "Nothing was tried: there was no time for the first technique. With "
                f"{first}{answer.needs} all are tried {how}.{few}"
            )
        return (
            "Nothing that was tried is faster and trains the same model, but there was no time for "
            f"{left} of the techniques. {more_time}."
        )
    return "Keep the training as it is: nothing that trains the same model was faster."


def text(answer: Answer, page: str = "", diff: str = "results/tune/changes.diff") -> str:
    """The answer for a terminal. ``page`` and ``diff`` are the paths of these files."""
    if answer.status != "ok":
        return headline(answer)
    lines = [headline(answer), ""]
    lines.append(
        f"{'Run twice, the script gives' if answer.reproducible else 'Beware:'} {answer.trust}."
    )
    if answer.noise:
        noise = "Against itself it is {ratio:.2f} [{low:.2f}, {high:.2f}] times as fast: the noise."
        lines.append(noise.format(**answer.noise))
    tried = told(answer)
    width = max((len(each.name) for each in tried), default=0)
    lines += ["", "Tried:"] if tried else []
    lines += [f"  {each.name:<{min(width, 40)}}  {in_words(each)}" for each in tried]
    if answer.diff:
        title = f"Change the script ({applying(answer, diff)}):" if answer.held else "The diff:"
        lines += ["", title, "", answer.diff.rstrip("\n")]
    if answer.lines:
        title = "Not in the diff:" if answer.diff else "Do this:"
        lines += ["", title, *(f"  {line}" for line in answer.lines)]
    for remark in _remarks(answer):
        lines += ["", remark]
    if page:
        lines += ["", f"The report: {page}"]
    return "\n".join(lines)


def applying(answer: Answer, diff: str) -> str:
    """The command that applies the diff in a file."""
    if not answer.base or Path(answer.base) == Path.cwd():
        return shlex.join(["git", "apply", diff])
    return shlex.join(["git", "-C", answer.base, "apply", str(Path(diff).absolute())])


def markdown(answer: Answer, title: str = "") -> str:
    """The answer in Markdown, under the ``title`` or else the command."""
    lines = [f"# {cell(title) or f'`{answer.command}`'}", ""]
    lines += [f"The training: `{answer.command}`.", ""] if title else []
    if answer.status != "ok":
        return "\n".join([*lines, cell(headline(answer))]) + "\n"
    lines += [headline(answer), ""]
    lines.append(f"{'Run twice: ' if answer.reproducible else 'Beware: '}{cell(answer.trust)}.")
    if tried := told(answer):
        lines += ["", "| tried | times as fast | the same training? |", "|---|---|---|"]
        lines += [f"| `{each.name}` | {speed(each)} | {cell(same(each))} |" for each in tried]
    if answer.diff:
        # A line of the script may be a fence itself.
        fence = max(["``", *re.findall("`+", answer.diff)], key=len) + "`"
        lines += ["", f"{fence}diff", answer.diff.rstrip("\n"), fence]
    if answer.lines:
        by_hand = (f"`{x}`" if x.startswith("export") else cell(x) for x in answer.lines)
        lines += ["", *(f"- {line}" for line in by_hand)]
    for remark in _remarks(answer):
        lines += ["", cell(remark)]
    return "\n".join(lines) + "\n"


def told(answer: Answer) -> list[Tried]:
    """The techniques that were tried, the best first, and those that were named and do not apply. Only the
    page also lists the others that do not apply, with the reasons."""
    named = {*answer.facts.get("named", [])}
    shown = [
        t
        for t in answer.tried
        if t.status not in NOT_TRIED or (t.status != LEFT_OUT and {*t.techniques} & named)
    ]
    return sorted(shown, key=by_result)


def _remarks(answer: Answer) -> list[str]:
    """The paragraphs after the table and the diff."""
    found = []
    if answer.patched is not None:
        found.append(f"The changed script, run against the original: {in_words(answer.patched)}.")
    if answer.left_out:
        left = "; ".join(answer.left_out)
        found.append(f"Left out for lack of time ({answer.needs} should be enough): {left}.")
    shown = told(answer)
    names = [t.name for t in answer.tried if t.status == "unsupported" and t not in shown]
    if names:
        many = f"{len(names)} technique{'s' * (len(names) > 1)}"
        found.append(f"Not for this script or machine: {many}. The report says which, and why.")
    found += notes(answer)
    if advice := unaudited(answer):
        found.append(advice)
    return found


def notes(answer: Answer) -> list[str]:
    """Observations other than speed: disturbed sessions, lines where the host waits for the GPU, and how
    much larger a batch could be."""
    found = []
    if answer.noise and disturbed(answer.noise["low"], answer.noise["high"]):
        found.append(DISTURBED)
    found += _of_bundle(answer)
    if waits := answer.facts.get("waits"):
        places = [f"{line} ({count} times)" for line, count in waits.items()]
        found.append(
            f"The host waits for the GPU at {', '.join(places)} in the first steps: read such values "
            "less often, or after the next step has started."
        )
    if answer.memory and (times := larger_batch(answer.memory)) >= 2:
        found.append(
            f"A batch about {times:.0f} times as large should fit into the memory of one process alone, "
            "if everything but weights, gradients and optimizer state grows with it."
        )
    return found


def _of_bundle(answer: Answer) -> list[str]:
    """Parts of the recommendation that may gain nothing."""
    best = answer.best
    if best is None or len(best.techniques) == 1:
        return []

    def without(name: str) -> Tried | None:
        return answer.find([each for each in best.techniques if each != name])

    names = [name for name in best.techniques if not (t := without(name)) or t.ratio is None]
    if not names:
        return []
    return [
        f"The recommendation was not compared without {' or without '.join(names)}: each of these "
        "changes may gain nothing."
    ]


def larger_batch(memory: dict[str, int]) -> float:
    """How many times as large a batch fits, from the peak memory of a process and its parts; 0 if they
    do not tell."""
    fixed = sum(memory[part] for part in ("libraries", "weights", "gradients", "optimizer"))
    grows = memory["peak"] - fixed
    return max(0.0, SHARE * memory.get("room", 0) - fixed) / grows if grows > 0 else 0.0


def unaudited(answer: Answer) -> str:
    """How to test the script itself; empty for a function, which cannot be audited."""
    if answer.facts.get("factory"):
        return ""
    return (
        "All comparisons are with the script as it is. Does the script itself do what it says? That was "
        f"not audited: audit-training {answer.command}"
    )


def speed(tried: Tried) -> str:
    """Ratio and interval, or why there is none."""
    if tried.status != "ok":
        return tried.status
    if tried.ratio is not None:
        return f"{tried.interval} {tried.verdict}".rstrip()
    return f"about {tried.screened:.2f}" if tried.screened else "not timed"


def same(tried: Tried) -> str:
    """The certificate as yes, NO or undecided with the reason, or why there is none."""
    if tried.status != "ok":
        return tried.reason.splitlines()[0] if tried.reason else ""
    if tried.certificate is None:
        return "not compared"
    said = {"same": "yes", "different": "NO"}.get(tried.certificate["word"], "undecided")
    return f"{said}: {tried.certificate['reason']}"


def by_result(tried: Tried) -> tuple[bool, bool, float]:
    """Sorts compared techniques before tried ones, each fastest first, and all others last."""
    return tried.status != "ok", tried.ratio is None, -(tried.ratio or tried.screened or 0.0)
