"""Texts of scripts and machines in the Markdown of every command."""

import pytest

from transformer_core.audit import __main__ as audit_command
from transformer_core.audit.relations import Answer as Audit
from transformer_core.audit.relations import Finding
from transformer_core.common.markdown import cell
from transformer_core.tune import answer as tune

EVIL = "RuntimeError: <class 'int'> | *x*"
SHOWN = r"RuntimeError: \<class 'int'\> \| \*x\*"


def test_only_underscores_at_the_ends_of_words_are_escaped():
    assert cell("a\n|<b>`_x_ gc_off") == r"a<br>\|\<b\>\`\_x\_ gc_off"


@pytest.mark.parametrize(
    "text",
    [
        tune.markdown(tune.Answer("a.py", status="failed", reason=EVIL)),
        tune.markdown(tune.Answer("a.py", tried=[tune.Tried(("bf16",), "failed", EVIL)])),
        tune.markdown(tune.Answer("a.py", lines=[EVIL])),
        audit_command.markdown(Audit("a.py", "failed", EVIL)),
        audit_command.markdown(Audit("a.py", findings=[Finding("later", EVIL, "b", "c")])),
        audit_command.markdown(Audit("a.py", relations={"later": {"status": "ok", "how": EVIL}})),
    ],
)
def test_foreign_texts_are_no_markup(text):
    assert SHOWN in text
    assert EVIL not in text
