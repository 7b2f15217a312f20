"""First contact as a program, with two additional probes."""

import os
import time

from transformer_core.measure.gpu_check import first_contact
from transformer_core.measure.gpu_check.first_contact import PROBES, Found, Probe


def look(item: str) -> Found:
    """Finds an item, fails, dies or hangs, as its name says."""
    if item == "dies":
        print("not JSON")
        os._exit(7)
    if item == "fails":
        raise RuntimeError("CUDA driver error: out of memory")
    if item == "hangs":
        time.sleep(600)
    return {"value": item}


PROBES["items"] = Probe(look, 60, lambda: ["one", "dies", "fails", "two"], needs_device=False)
PROBES["hanging"] = Probe(look, 2.0, lambda: ["first", "hangs", "never"], needs_device=False)
first_contact.START_SECONDS = 0.0

if __name__ == "__main__":
    first_contact.main()
