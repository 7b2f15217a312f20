"""The answer as text: for a terminal, and as Markdown for a pull request."""

from html import escape

from transformer_core.tune.flow import Answer, Tried, in_words, listed, useful
from transformer_core.tune.techniques.registry import TECHNIQUES

LEFT_OUT = "Left out for lack of time:"
NOT_TRIED = ("unsupported", "left out")


def headline(answer: Answer) -> str:
    """The answer in one sentence."""
    if answer.status != "ok":
        return f"{answer.command} cannot be tuned: {answer.reason}"
    best = answer.best
    if best is None:
        open_ = [t for t in answer.tried if useful(t) and t.verdict == "UNDECIDED"]
        if open_:
            likely = max(open_, key=lambda t: t.ratio or 0)
            return (
                "Nothing is certain yet: the most promising change that trains the same model, "
                f"{listed(likely.techniques)}, is {likely.ratio:.2f} [{likely.low:.2f}, "
                f"{likely.high:.2f}] times as fast. Give it more time (--time 10min, or time: 10min in the "
                "study), or a quieter machine."
            )
        fast = [t for t in answer.tried if useful(t) and (t.screened or 0) > 1]
        if fast and all(t.ratio is None for t in answer.tried):
            likely = max(fast, key=lambda t: t.screened or 0)
            return (
                f"Nothing is certain yet: {listed(likely.techniques)} trains the same model, and was "
                f"about {likely.screened:.2f} times as fast in one session. Give it more time "
                "(--time 10min, or time: 10min in the study)."
            )
        return "Keep the training as it is: nothing that trains the same model was faster."
    return (
        f"{best.ratio:.2f} [{best.low:.2f}, {best.high:.2f}] times as fast, and the same training, "
        f"with {listed(best.techniques)}."
    )


def text(answer: Answer, page: str = "", diff: str = "results/tune/changes.diff") -> str:
    """The answer for a terminal. ``page`` and ``diff`` are the paths of these files."""
    lines = [headline(answer), ""]
    if answer.status != "ok":
        return "\n".join(lines)
    lines += [
        f"Run twice, the script gives {answer.trust}."
        if answer.reproducible
        else f"Beware: {answer.trust}."
    ]
    if answer.noise:
        lines += [
            "Against itself it is {ratio:.2f} [{low:.2f}, {high:.2f}] times as fast: the noise.".format(
                **answer.noise
            )
        ]
    tried = told(answer)
    width = max((len(each.name) for each in tried), default=0)
    lines += ["", "Tried:"] if tried else []
    lines += [f"  {each.name:<{min(width, 40)}}  {in_words(each)}" for each in tried]
    if answer.diff:
        lines += [
            "",
            f"Change the script (git apply {diff}):",
            "",
            answer.diff.rstrip(),
        ]
    if answer.lines:
        lines += [
            "",
            "Not in the diff:" if answer.diff else "Do this:",
            *(f"  {x}" for x in answer.lines),
        ]
    if answer.patched is not None:
        lines += ["", f"The changed script: {in_words(answer.patched)}."]
    if answer.left_out:
        lines += ["", f"{LEFT_OUT} {'; '.join(answer.left_out)}."]
    for note in [inapplicable(answer), *notes(answer), unaudited(answer)]:
        lines += ["", note] if note else []
    if page:
        lines += ["", f"The report: {page}"]
    return "\n".join(lines)


def markdown(answer: Answer) -> str:
    """The answer on one page of Markdown."""
    lines = [f"# `{answer.command}`", "", headline(answer), ""]
    if answer.status != "ok":
        return "\n".join(lines) + "\n"
    lines += [
        f"{'Run twice: ' if answer.reproducible else 'Beware: '}{answer.trust}.",
        "",
        "| tried | times as fast | the same training? |",
        "|---|---|---|",
    ]
    lines += [f"| `{each.name}` | {speed(each)} | {same(each)} |" for each in told(answer)]
    if answer.diff:
        lines += ["", "```diff", answer.diff.rstrip(), "```"]
    if answer.lines:
        lines += ["", *(f"- `{x}`" if x.startswith("export") else f"- {x}" for x in answer.lines)]
    if answer.patched is not None:
        lines += ["", f"The changed script, run against the original: {in_words(answer.patched)}."]
    if answer.left_out:
        lines += ["", f"{LEFT_OUT} {'; '.join(answer.left_out)}."]
    for note in [inapplicable(answer), *notes(answer), unaudited(answer)]:
        lines += ["", note] if note else []
    return "\n".join(lines) + "\n"


def told(answer: Answer) -> list[Tried]:
    """What was tried or asked for by name, the best first. The page also lists, with the reasons,
    what does not apply here."""
    named = answer.facts.get("named", [])
    shown = [t for t in answer.tried if t.status not in NOT_TRIED or {*t.techniques} & {*named}]
    return sorted(shown, key=by_result)


def inapplicable(answer: Answer) -> str:
    """The techniques that are not for this script or machine; empty without any."""
    shown = [each.name for each in told(answer)]
    names = [t.name for t in answer.tried if t.status == "unsupported" and t.name not in shown]
    return f"Not for this script or machine (the report says why): {', '.join(names)}." * bool(
        names
    )


def notes(answer: Answer) -> list[str]:
    """What was seen of the script beside its speed: where the host waits for the GPU, and how much
    larger a batch could be."""
    found = []
    if waits := answer.facts.get("waits"):
        places = [f"{line} ({count} times)" for line, count in waits.items()]
        found.append(
            f"The host waits for the GPU at {', '.join(places)} in the first steps: read such values "
            "less often, or behind the next step."
        )
    if answer.memory and (times := larger_batch(answer.memory)) >= 2:
        found.append(
            f"A batch about {times:.0f} times as large should fit into the memory of one process alone, "
            "if all but weights, gradients and optimizer state grows with it."
        )
    return found


SHARE = 0.9
"""Of a device's memory, at most this share is given to a batch."""


def larger_batch(memory: dict[str, int]) -> float:
    """How many times as large a batch fits, from the peak of a process and its parts; 0 if they do
    not tell."""
    fixed = sum(memory[part] for part in ("libraries", "weights", "gradients", "optimizer"))
    grows = memory["peak"] - fixed
    return max(0.0, SHARE * memory.get("room", 0) - fixed) / grows if grows > 0 else 0.0


def unaudited(answer: Answer) -> str:
    """How to test the script itself; empty for a function, which cannot be audited."""
    if answer.facts.get("factory"):
        return ""
    return (
        "All of this compares with the script as it is. Does the script do what it says? Not audited: "
        f"audit-training {answer.command}"
    )


def html(answer: Answer) -> str:
    """The answer for a notebook."""
    parts = [f"<p><b>{escape(headline(answer))}</b></p>"]
    if answer.tried:
        rows = "".join(
            f"<tr><td><code>{escape(each.name)}</code></td><td>{escape(speed(each))}</td>"
            f"<td>{escape(same(each))}</td></tr>"
            for each in told(answer)
        )
        head = "<tr><th>tried</th><th>times as fast</th><th>the same training?</th></tr>"
        parts.append(f"<table>{head}{rows}</table>")
    if more := "\n".join([answer.diff, *answer.lines]).strip():
        parts.append(f"<pre>{escape(more)}</pre>")
    return "".join(parts)


def speed(tried: Tried) -> str:
    """Ratio and interval, or why there is none."""
    if tried.status != "ok":
        return tried.status
    if tried.ratio is not None:
        return f"{tried.ratio:.2f} [{tried.low:.2f}, {tried.high:.2f}] {tried.verdict}"
    return f"about {tried.screened:.2f}" if tried.screened else "not timed"


def same(tried: Tried) -> str:
    """The certificate in a few words."""
    if tried.status != "ok":
        return tried.reason.splitlines()[0] if tried.reason else ""
    if tried.certificate is None:
        return "not compared"
    return f"{'yes' if useful(tried) else 'NO'}: {tried.certificate['reason']}"


def words(name: str) -> str:
    """Describes the change that a technique makes."""
    return TECHNIQUES[name].words if name in TECHNIQUES else name


def by_result(tried: Tried) -> tuple[bool, bool, float]:
    """Sorts the compared first, then the tried, each the fastest first, and then all others."""
    return tried.status != "ok", tried.ratio is None, -(tried.ratio or tried.screened or 0.0)
