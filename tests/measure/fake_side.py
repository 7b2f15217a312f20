"""A worker without torch that takes turns; its name determines its behaviour."""

import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.records import provenance, topology
from transformer_core.measure.sessions import COPY, TurnsOrder, without_copy
from transformer_core.run import coordinator
from transformer_core.run.statuses import end_with_parent

SECONDS = 0.004


def run(order: TurnsOrder) -> None:
    side = without_copy(order.side)
    log = Path(os.environ["FAKE_LOG"])
    turns = coordinator.Turns(order.coordinator, coordinator.Hello(order.side, 0, topology()))
    done = 0
    while True:
        match turns.next():
            case coordinator.Turn(lead, steps):
                done += 1
                if done == 4 and side == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                if done == 4 and side == "fails":
                    raise ValueError("a mistake")
                if done == 4 and side == "stalls":
                    time.sleep(600)
                with log.open("a") as file:
                    print(order.side, lead, steps, file=file)
                time.sleep(SECONDS)
                # Every second window is a little slower. The first side has a turn more: the pilot.
                own = done - (order.side == "single" and done > 1)
                slow = {"fast": 0.5}.get(side, 1.0) * (1 + 0.02 * (own % 2))
                if COPY in order.side:
                    slow *= 1.21  # the mean of both is 1.1 times as long
                if side == "noisy":  # the same noise in every session
                    slow *= random.Random(done).uniform(0.9, 1.1)
                turns.answer(
                    coordinator.Report(slow * steps * 0.01, 100 * steps, 110 * steps, 0.001)
                )
            case coordinator.TellMemory():
                turns.answer(1000 + round(order.planted or 0))
            case coordinator.TellKernels():
                turns.answer(None)
            case coordinator.TellProvenance(command, _):
                turns.answer(provenance(command=command))
            case coordinator.Leave():
                return


def main() -> None:
    order = TurnsOrder.read(Path(sys.argv[1]))
    if order.side == "fails":
        # Imports torch, which takes longer than all turns: only for a side that leaves a reason.
        from transformer_core.run.statuses import supervised

        with supervised(Path(sys.argv[1]).parent):
            run(order)
    else:
        end_with_parent()
        run(order)


if __name__ == "__main__":
    main()
