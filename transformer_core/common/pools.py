"""Processes of a pool end with the process that made it.

By themselves, those of :class:`concurrent.futures.ProcessPoolExecutor` would wait for work forever if
that process is killed: each of them holds an end of the pipe on which it waits.
"""

import os
import threading

CHANGES_NO_RESULT = True  # it ends processes


def end_with_maker() -> None:
    """The initializer of a pool's processes."""
    # Imported here: whoever makes no pool need not wait for it.
    from multiprocessing import parent_process

    maker = parent_process()
    if maker is not None:
        threading.Thread(target=_end_after, args=(maker.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)
