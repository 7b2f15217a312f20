"""Two hosts on one machine: their link is as slow as it is said to be, and nothing is left."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_core.run import namespaces

REFUSAL = namespaces.refusal()
linked = pytest.mark.skipif(REFUSAL is not None, reason=f"no limited link here: {REFUSAL}")

TRIAL = [sys.executable, "-m", namespaces.__name__]
BANDWIDTH = 8e6
BYTES = 1_000_000

TRANSFER = f"""
import os, socket, sys, time
from transformer_core.run import namespaces
first, second = namespaces.join_two({BANDWIDTH})
child = os.fork()
if child == 0:
    first.enter()
    with socket.create_server((first.address, 5000)) as server:
        connection, _ = server.accept()
        left = {BYTES}
        while left:
            left -= len(connection.recv(65536))
        connection.sendall(b"!")
    os._exit(0)
for _ in range(200):
    try:
        connection = socket.create_connection((first.address, 5000))
        break
    except OSError:
        time.sleep(0.05)
began = time.monotonic()
connection.sendall(bytes({BYTES}))
connection.recv(1)
print(time.monotonic() - began)
os.waitpid(child, 0)
"""


@linked
def test_the_link_lets_no_more_through_than_its_bandwidth() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRANSFER], capture_output=True, text=True, check=True, timeout=100
    )
    ideal = 8 * BYTES / BANDWIDTH
    # Headers make it longer; what an idle link lets through at once is a hundredth.
    assert float(done.stdout) > 0.98 * ideal


@linked
def test_nothing_is_left_of_it() -> None:
    before = Path("/proc/self/ns/net").readlink(), socket.if_nameindex()
    subprocess.run(TRIAL, check=True, capture_output=True)
    assert (Path("/proc/self/ns/net").readlink(), socket.if_nameindex()) == before


@linked
@pytest.mark.skipif(os.getuid() != 0, reason="takes rights away from the superuser")
def test_a_user_without_rights_gets_them_in_a_user_namespace() -> None:
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin,-net_admin", *TRIAL],
        capture_output=True,
        text=True,
        check=False,
    )
    if "not allowed" in done.stderr:
        pytest.skip(f"no user namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(namespaces, "_tool", lambda name: None if name == "tc" else f"/sbin/{name}")
    with pytest.raises(namespaces.NamespacesUnavailableError, match=r"tc is missing.*iproute2"):
        namespaces.join_two(BANDWIDTH)


def test_another_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(namespaces.NamespacesUnavailableError, match="this is darwin"):
        namespaces.join_two(BANDWIDTH)


def test_a_refusal_is_what_the_trial_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert namespaces.refusal() == "it failed without a word"
