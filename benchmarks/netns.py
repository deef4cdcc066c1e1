"""Two nodes on one machine: network namespaces joined by a link, as slow as is asked for.

Needs root, `ip`, and `tc` for a limit. `python -m benchmarks.netns` makes the pair and shows it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

SUBNET = "10.9.0"
MTU = "1500"
LOCAL = ("127.0.0.1 localhost", "::1 localhost", "::ffff:127.0.0.1 localhost")
ETC = Path("/etc/netns")
"""Files that `ip netns exec NAME` shows below /etc."""


@dataclass(frozen=True)
class Node:
    """`prefix`: put before a command, it runs on this node."""

    namespace: str
    interface: str
    address: str

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace]


def missing() -> str | None:
    """What this machine lacks for network namespaces; None: nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"network namespaces need {program} (apt install iproute2)"
    probe = f"pl-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", probe], capture_output=True)
    return f"no network namespaces here: {made.stderr.strip()}" if made.returncode else None


@contextmanager
def two_nodes(rate: str | None = None, latency: str = "50ms") -> Iterator[tuple[Node, Node]]:
    """Two namespaces with one address each, deleted in the end. `rate`: of the link in both
    directions, as tc writes it (500mbit); what waits longer than `latency` for it is dropped."""
    _delete_orphans()
    token = f"{os.getpid()}{uuid.uuid4().hex[:2]}"
    nodes = tuple(Node(f"pl{token}n{i}", f"pl{token}v{i}", f"{SUBNET}.{i + 1}") for i in (0, 1))
    first, second = nodes
    try:
        for number, node in enumerate(nodes):
            _ip("netns", "add", node.namespace)
            _name(node, [f"{one.address} node{i}" for i, one in enumerate(nodes)], number)
        ends = ["netns", first.namespace, "type", "veth", "peer", "name", second.interface]
        _ip("link", "add", first.interface, *ends, "netns", second.namespace)
        for node in nodes:
            inside = ("-n", node.namespace)
            _ip(*inside, "address", "add", f"{node.address}/24", "dev", node.interface)
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "link", "set", node.interface, "mtu", MTU, "up")
            if rate is not None:
                limit = ["tbf", "rate", rate, "burst", "256kb", "latency", latency]
                _run([*node.prefix, "tc", "qdisc", "add", "dev", node.interface, "root", *limit])
        yield first, second
    finally:
        for node in nodes:
            _delete(node.namespace)


def cut(node: Node) -> None:
    """Take the link down: nothing comes through any more, and nobody is told."""
    _ip("-n", node.namespace, "link", "set", node.interface, "down")


def mend(node: Node) -> None:
    _ip("-n", node.namespace, "link", "set", node.interface, "up")


def _delete(namespace: str) -> None:
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
    shutil.rmtree(ETC / namespace, ignore_errors=True)


def _delete_orphans() -> None:
    """Those of processes that were killed before they could: the name holds the process."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for namespace in re.findall(r"^pl\d+[0-9a-f]{2}n[01]\b", listed, re.MULTILINE):
        if not psutil.pid_exists(int(namespace[2:-4])):
            _delete(namespace)


def _name(node: Node, names: list[str], number: int) -> None:
    """Names as a cluster has them: without, each look-up waits seconds for a server out of reach.
    The host's own name is this node's."""
    etc = ETC / node.namespace
    etc.mkdir(parents=True)
    names[number] += f" {socket.gethostname()}"
    (etc / "hosts").write_text("\n".join([*LOCAL, *names, *(f"::ffff:{n}" for n in names)]) + "\n")
    (etc / "resolv.conf").write_text("")


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


if __name__ == "__main__":
    with two_nodes("500mbit") as pair:
        for made in pair:
            print(subprocess.run([*made.prefix, "ip", "-brief", "address"], text=True, check=True))
