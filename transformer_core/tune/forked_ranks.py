"""Forks the ranks of a script from one process that has imported torch. Under torchrun, each of them
and torchrun itself would import it again."""

import os
import signal
import socket
import uuid
from contextlib import suppress

from torch.distributed import TCPStore

from transformer_core.run.statuses import end_with_parent


def fork_ranks(count: int) -> None:
    """Returns in ``count`` forks of this process, each with the variables that torchrun gives to a
    rank, except for a file for its error. This process serves their store, and ends with them: with 1
    if one of them fails, or by the signal that killed one, after it has ended the others."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1_024)
    shared = {
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(count)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(listener.getsockname()[1]),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    ranks, parent = set(), os.getpid()
    for rank in range(count):
        child = os.fork()
        if not child:
            end_with_parent(parent)
            listener.close()
            own = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
            os.environ.update(shared | own)
            return
        ranks.add(child)
    # Begun after the forks, because it has a thread.
    store = TCPStore(
        shared["MASTER_ADDR"],
        int(shared["MASTER_PORT"]),
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    failed = 0
    while ranks:
        child, status = os.wait()
        ranks.discard(child)
        if status and not failed:
            failed = status
            for other in ranks:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    del store
    if os.WIFSIGNALED(failed):  # by the system for lack of memory, say
        os.kill(os.getpid(), os.WTERMSIG(failed))
    os._exit(int(failed != 0))
