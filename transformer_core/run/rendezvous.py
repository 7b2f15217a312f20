"""torchrun with a rendezvous whose store listens on one address, ``--rdzv-backend=one_address``.

torch's own rendezvous open a store that everybody who reaches this host can read and write.
``python -m transformer_core.run.rendezvous`` takes the options of torchrun and runs on every host of
a run. It starts and ends quickly, by means of :mod:`transformer_core.run.quick_start`.
"""

import logging
import os
import socket
import sys

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from transformer_core.common.quick_end import to_the_end
from transformer_core.run.quick_start import code_of_agent, imported

BACKEND = "one_address"
_SECONDS = 600


class OneAddress(StaticTCPRendezvous):
    """A static rendezvous whose store listens only on the address that the hosts were given."""

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        if not self._store and self.rank == 0:
            # The store takes over the socket and closes it.
            listener = listening(self.master_addr, self.master_port)
            self.master_port = listener.getsockname()[1]
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                is_master=True,
                timeout=self.timeout,
                multi_tenant=True,
                master_listen_fd=listener.detach(),
            )
        return super().next_rendezvous()


def listening(address: str, port: int) -> socket.socket:
    """A socket that listens on one address; OSError, with the remedy, if it is not this host's."""
    listener = socket.socket(socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno,
            f"{error.strerror}: {address}:{port} (RENDEZVOUS) must be one of the first host's own "
            "addresses, with a free port",
        ) from None
    listener.listen(1_024)
    return listener


def meet(parameters: RendezvousParameters) -> RendezvousHandler:
    """The rendezvous for torchrun's options."""
    address, port = parse_rendezvous_endpoint(parameters.endpoint, 0)
    return OneAddress(
        socket.gethostbyname(address),
        port,
        int(parameters.config.get("rank", 0)),
        parameters.max_nodes,
        parameters.run_id,
        int(parameters.config.get("timeout", _SECONDS)),
    )


def register() -> None:
    if BACKEND not in rendezvous_handler_registry._registry:
        rendezvous_handler_registry.register(BACKEND, meet)


def stop_silently() -> None:
    """Drops what torch's agent says about a signal to stop, and about processes that failed and their
    peers: the job says itself that it stops, and why a process failed."""
    asked = False

    def shown(record: logging.LogRecord) -> bool:
        nonlocal asked
        said = str(record.msg)
        asked = asked or "death signal" in said
        # A signal that comes while ranks start is not announced before they are closed.
        if said.startswith(("failed (exitcode", "Terminating process", "Closing process")):
            return False
        return not asked or record.levelno > logging.WARNING

    for part in ("elastic.agent.server.api", "elastic.multiprocessing.api"):
        logging.getLogger(f"torch.distributed.{part}").addFilter(shown)
    logging.getLogger("torch.multiprocessing.spawn").addFilter(shown)


def main() -> int:
    register()
    stop_silently()
    # Workers report their errors in their own files; torchrun's would stay in /tmp.
    options = [f"--log-dir={os.devnull}", *sys.argv[1:]]
    return code_of_agent(lambda: imported("torch.distributed.run").main(options))


if __name__ == "__main__":
    to_the_end(main)
