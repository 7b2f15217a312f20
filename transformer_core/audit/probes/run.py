"""Runs all probes of a call."""

import math
from typing import Any

from torch import Tensor

from transformer_core.audit.probes.documents import documents
from transformer_core.audit.probes.inputs import inputs
from transformer_core.audit.probes.later import later
from transformer_core.audit.probes.padding import padding
from transformer_core.audit.probes.precision import precision
from transformer_core.audit.probes.probed_call import ProbedCall, why
from transformer_core.audit.probes.samples import samples
from transformer_core.audit.relations import OF_CALLS, Notes
from transformer_core.audit.replay import Call
from transformer_core.audit.watcher import Watcher

PROBES = (samples, later, padding, documents, inputs, precision)
"""In this order, since whether samples are mixed decides how tokens are probed."""


def probe(
    call: Call,
    watcher: Watcher,
    outside: list[tuple[str, Tensor, Any]],
    end: float = math.inf,
) -> Notes:
    """Probes a call until ``end``, a time of ``time.monotonic``. Adds to the notes of the watcher, and returns
    these.

    ``outside`` has the losses that the script computed from the results of the call.
    """
    probed, notes = ProbedCall(call, watcher, outside, end), watcher.found
    try:
        probed.repeat()
    except Exception as error:
        for relation in OF_CALLS:
            notes.cannot(relation, why(error))
        return notes
    for each in PROBES:
        try:
            each(probed)
        except Exception as error:
            notes.cannot(each.__name__, why(error))
            if each == later:
                notes.cannot("shift", why(error))
    return notes
