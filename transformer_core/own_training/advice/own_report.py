"""The report of a user's training, as Markdown."""

from collections.abc import Sequence

from schemas.results.own_training import OwnTrainingResult, TriedTogether
from transformer_core.own_training.techniques import TECHNIQUES


def own_report(result: OwnTrainingResult, diff: str, words: Sequence[str]) -> str:
    """The whole report; ``diff`` and ``words`` are what to change in the script."""
    lines = [f"# {result.factory}", "", _answer(result), ""]
    if result.status != "ok" or result.facts is None:
        return "\n".join([*lines, f"The step could not run: {result.status}, {result.reason}", ""])
    facts = result.facts
    clipped = f"clipped at {facts.clip_norm:g}" if facts.clip_norm else "not clipped"
    lines += [
        f"{facts.parameters:,} parameters, {facts.optimizer}, gradients {clipped}. In the short "
        f"training of {len(result.own_loss)} steps the loss went from {result.own_loss[0]:.4f} to "
        f"{result.own_loss[-1]:.4f}. {_rounding(result)}",
        "",
        "## What was tried",
        "",
        "Speed is the throughput relative to the step as it is, timed in turns with it; the "
        "intervals hold all at once with 95 %. `same` is said of a training that the bounds of its "
        "kind let pass: equal up to rounding, or with fewer bits the same course of the loss.",
        "",
        "| techniques | the same training? | speed | verdict |",
        "|---|---|---|---|",
        *map(_row, result.tried),
        "",
        "What the names mean:",
        "",
        *(
            f"- `{name}`: {tried.words}"
            for name, tried in TECHNIQUES.items()
            if _occurs(result, name)
        ),
        "",
        "## What to change in the script",
        "",
    ]
    if not result.recommended:
        return "\n".join([*lines, "Nothing: no technique is faster and trains the same.", ""])
    if diff:
        lines += ["Apply it with `git apply results/own_training/changes.diff`:", ""]
        lines += ["```diff", diff.rstrip("\n"), "```", ""]
    lines += [f"- {word}" for word in words]
    return "\n".join([*lines, "", f"Made by `{result.provenance.command}`.", ""])


def _answer(result: OwnTrainingResult) -> str:
    best = next((t for t in result.tried if t.techniques == result.recommended), None)
    if best is None or best.speed is None:
        return "**Keep the step as it is.**"
    speed = best.speed
    return (
        f"**{' with '.join(f'`{name}`' for name in result.recommended)}: {speed.median:.2f} times "
        f"as fast ({speed.low:.2f} to {speed.high:.2f}), and the same training.**"
    )


def _rounding(result: OwnTrainingResult) -> str:
    if result.own_rounding is None:
        return f"It was not compared with 64 bits: {result.wide_reason}."
    return (
        f"Its weights are then {result.own_rounding:.1e} of their change away from those of the "
        "same training in 64 bits: its own rounding."
    )


def _row(tried: TriedTogether) -> str:
    names = " + ".join(f"`{name}`" for name in tried.techniques)
    if tried.status != "ok":
        return f"| {names} | – | – | {tried.status}: {_plain(tried.reason or '')} |"
    certificate = tried.certificate
    rounding = f"; {certificate.rounding:.1f} times the rounding" if certificate.rounding else ""
    said = f"{certificate.word}: {_plain(certificate.reason)}{rounding}"
    if tried.speed is None:
        return f"| {names} | {said} | – | not timed |"
    speed = f"{tried.speed.median:.3f} ({tried.speed.low:.3f} to {tried.speed.high:.3f})"
    return f"| {names} | {said} | {speed} | {tried.verdict} |"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _occurs(result: OwnTrainingResult, name: str) -> bool:
    return any(name in tried.techniques for tried in result.tried)
