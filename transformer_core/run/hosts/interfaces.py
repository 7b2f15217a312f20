"""Which network interface the processes of a run talk over: none that others can reach without
need."""

import ipaddress
import socket
from collections.abc import Mapping

import psutil

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Where gloo, NCCL and TensorPipe look for the name of the interface that they listen on."""

LOOPBACK = "127.0.0.1"


def within_host(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of processes of one host, which only talk to one another: those of loopback.
    What was ``given``, the user's own choice, comes first."""
    return {name: given.get(name, interface_of(LOOPBACK)) for name in INTERFACE_VARIABLES}


def between_hosts(
    first: str, port: int, is_first: bool, given: Mapping[str, str]
) -> dict[str, str]:
    """The environment of processes of one of several hosts: of the interface with which this host
    reaches the ``first``. Empty where the system does not tell it."""
    address = socket.gethostbyname(first) if is_first else _own_address(first, port)
    name = interface_of(address) if address else ""
    return {variable: given.get(variable, name) for variable in INTERFACE_VARIABLES} if name else {}


def interface_of(address: str) -> str:
    """The name of the interface with an IPv4 address; empty where none has it."""
    if ipaddress.ip_address(address).is_loopback:
        address = LOOPBACK  # all of 127/8 is this one
    for name, found in psutil.net_if_addrs().items():
        if any(one.family == socket.AF_INET and one.address == address for one in found):
            return name
    return ""


def _own_address(host: str, port: int) -> str:
    """The address with which this host reaches another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return ""
        found: str = probe.getsockname()[0]
        return found
