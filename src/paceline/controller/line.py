"""A connection between two nodes: lines of JSON, one object each, the last of each kind kept."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import psutil

from paceline.types import ConfigError

TRY_EVERY_S = 0.2


BROKEN = (OSError, ValueError, KeyError, TypeError)
"""What reading gives when the other side is cut off, or is no paceline."""


class Line:
    """`gone`: why the other side is no longer there, None while it is; `problems`: what it said of
    that. `address`: this side's. `node`, `host`: who the other side said that it is."""

    def __init__(self, connection: socket.socket, changed: threading.Condition) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = str(connection.getsockname()[0]).removeprefix("::ffff:").partition("%")[0]
        self.node: int | None = None
        self.host = ""
        self.gone: str | None = None
        self.problems: list[str] = []
        self._connection, self._changed = connection, changed
        self._sending = threading.Lock()
        self._said: dict[str, dict[str, Any]] = {}
        self._heard_at = time.monotonic()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, what: str, **said: Any) -> None:
        """Never raises: a side that is gone is seen by who reads."""
        message = json.dumps({"what": what, **said}, default=str) + "\n"
        with self._sending, suppress(OSError):
            self._connection.sendall(message.encode())

    def heard(self, what: str, attempt: int | None = None) -> dict[str, Any] | None:
        """The last message of this kind, if it is about this attempt."""
        said = self._said.get(what)
        return said if attempt is None or (said and said["attempt"] == attempt) else None

    def lost_after(self, seconds: float) -> None:
        """Give the other side up when it has been silent for so long."""
        if self.gone is None and time.monotonic() - self._heard_at > seconds:
            self._end(f"was silent for {seconds:g} s")
            self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self) -> None:
        with suppress(*BROKEN), self._connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                self._heard_at = time.monotonic()
                with self._changed:
                    self._said[message["what"]] = message
                    if message["what"] == "left":
                        self.node, self.problems = message["node"], message["problems"]
                    self._changed.notify_all()
        self._end("left" if "left" in self._said else "ended without a word")
        self.close()

    def _end(self, why: str) -> None:
        with self._changed:
            self.gone = self.gone or why
            self._changed.notify_all()


def listen(port: int) -> socket.socket:
    """On all addresses of this host. Raises ConfigError when the port can't be had."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(
            [
                f"launch.rdzv_endpoint: port {port} of this node can't be had ({error.strerror}); "
                "is launch.node_rank=0 given twice, or another job running? Choose another port"
            ]
        ) from error


def connect(host: str, port: int, wait_s: float) -> socket.socket:
    """Once somebody listens there; raises the last OSError after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=2.0)
            connection.settimeout(None)
            return connection
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(TRY_EVERY_S)


def interface_of(addresses: set[str]) -> str | None:
    """The network interface of this host that has one of these addresses."""
    for name, entries in psutil.net_if_addrs().items():
        if addresses & {entry.address.partition("%")[0] for entry in entries}:
            return name
    return None
