"""Several nodes meet before any rank starts, and part after the last rank has ended.

Node 0 listens at launch.rdzv_endpoint; every other node holds one connection to it, of lines of
JSON. One that ends, or is silent for launch.timeout_s, is a lost node: nothing waits without
bound. The ranks meet in a c10d store of node 0, on a port that it tells; not here, for that store
prints pages when its server goes, and doesn't say who has gone.
"""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from paceline.controller.agreement import differences, missing, nobody
from paceline.controller.line import Line, connect, interface_of, listen
from paceline.controller.plan import Job
from paceline.controller.rules import node_rank
from paceline.types import ConfigError

BEAT_EVERY_S = 2.0
BEATS = 5
"""As many must fail to come before a node counts as silent, however short launch.timeout_s is."""

LINGER_S = 5.0
"""Node 0 stays this long to tell the others why it ends, and to hear that they have heard."""


class Meeting:
    """What both sides share. `lines`: node -> the connection to it; node 0 has one to every other
    node, any other node just one."""

    def __init__(self, job: Job, rank: int, nnodes: int) -> None:
        launch = job.config["launch"]
        self.node_rank, self.nnodes = rank, nnodes
        self.endpoint: str = launch["rdzv_endpoint"] or ""
        self.lines: dict[int, Line] = {}
        self._changed = threading.Condition()
        self._wait_s, self._silent_s = launch["meet_timeout_s"], launch["timeout_s"]
        self._settle_s = launch["timeout_s"] + launch["stop_grace_s"]
        self._alarmed = -1
        self._over = threading.Event()
        if self.nnodes > 1:
            threading.Thread(target=self._beat, daemon=True).start()

    def alarm(self, attempt: int) -> None:
        """Tell the others, once, that this attempt has failed."""
        if self._alarmed < attempt:
            self._alarmed = attempt
            for line in self.lines.values():
                line.send("trouble", attempt=attempt)

    def trouble(self, attempt: int) -> bool:
        """Has this attempt failed on another node, or is one lost? Passed on to all."""
        if any(line.heard("trouble", attempt) or line.gone for line in self.lines.values()):
            self.alarm(attempt)
            return True
        return False

    def interface(self) -> str | None:
        """The network interface on the way to the other nodes; None: not known."""
        return interface_of({line.address for line in self.lines.values()})

    def leave(self, problems: list[str]) -> None:
        """End early; the others hear why."""
        self._close("left", problems)

    def part(self) -> None:
        """End in order."""
        self._close("bye", [])

    def _close(self, word: str, problems: list[str]) -> None:
        self._over.set()
        for line in self.lines.values():
            line.send(word, node=self.node_rank, problems=problems)
            line.close()

    def _until(self, condition: Callable[[], Any], seconds: float | None) -> bool:
        """Wait for it, at most so long; was it true?"""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while not condition():
                left = 1.0 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 1.0))
        return True

    def _beat(self) -> None:
        while not self._over.wait(min(BEAT_EVERY_S, self._silent_s / BEATS)):
            for line in list(self.lines.values()):
                line.send("beat")
                line.lost_after(self._silent_s)


class Lead(Meeting):
    """Node 0, or the only node."""

    def __init__(self, job: Job, nnodes: int) -> None:
        super().__init__(job, 0, nnodes)
        self.host = "localhost"  # of the store, for the ranks of this node
        self.port = 0
        self._store: Any = None
        self._arrived: list[Line] = []
        self._listener: socket.socket | None = None
        self._waited = False
        if self.nnodes > 1:
            self._listener = listen(int(self.endpoint.rpartition(":")[2]))
            threading.Thread(target=self._accept, daemon=True).start()

    def agree(self, mine: dict[str, Any], finished: dict[str, Any] | None) -> None:
        """Wait for all other nodes, and tell them to begin, or how the job ended before.

        Raises ConfigError, on all nodes, when one doesn't come or says anything else than this.
        """
        problems: list[str] = []

        def complete() -> bool:
            problems.extend(self._admit(mine))
            return bool(problems) or len(self.lines) == self.nnodes - 1

        self._waited = not self._until(complete, self._wait_s)
        if self._waited:
            late = [n for n in range(1, self.nnodes) if n not in self.lines]
            problems += [missing(n, self.nnodes, self.endpoint, self._wait_s) for n in late]
        if problems:
            raise ConfigError(problems)
        self._close_door()
        for line in self.lines.values():
            line.send("answer", finished=finished)

    def begin(self, attempt: int) -> None:
        """Open a store for the ranks of this attempt; each has its own, for keys aren't deleted."""
        from torch._C._distributed_c10d import TCPStore

        self._store = TCPStore(
            "localhost",
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=self._wait_s),
        )
        self.port = self._store.port
        for line in self.lines.values():
            line.send("begin", attempt=attempt, port=self.port)

    def reports(self, attempt: int) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """After the ranks of this node: how they ended on the others; and which nodes are lost."""
        lines = self.lines

        def settled() -> bool:
            return all(line.heard("report", attempt) or line.gone for line in lines.values())

        self._until(settled, self._settle_s)
        self._store = None
        told = {n: said for n, line in lines.items() if (said := line.heard("report", attempt))}
        late = f"did not end within {self._settle_s:g} s after the others"
        lost = {n: line.gone or late for n, line in lines.items() if n not in told}
        return told, lost

    def decide(self, attempt: int, outcome: dict[str, Any] | None) -> None:
        """What comes after this attempt: another one, or the end with this outcome."""
        for line in self.lines.values():
            line.send("decision", attempt=attempt, outcome=outcome)

    def leave(self, problems: list[str]) -> None:
        def all_there() -> bool:
            return len(self._arrived) >= self.nnodes - 1

        if self._listener is not None and problems and not self._waited:
            self._until(all_there, LINGER_S)  # those that come a little late hear it too
        self.lines = dict(enumerate(self._arrived))
        super().leave(problems)

    def part(self) -> None:
        lines = self.lines.values()
        self._until(lambda: all(line.heard("bye") or line.gone for line in lines), LINGER_S)
        super().part()

    def _close(self, word: str, problems: list[str]) -> None:
        super()._close(word, problems)
        self._store = None
        self._close_door()

    def _close_door(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed: all are here
                return
            with self._changed:
                self._arrived.append(Line(connection, self._changed))
                self._changed.notify_all()

    def _admit(self, mine: dict[str, Any]) -> list[str]:
        """Seat those who have said who they are; what is wrong with one."""
        for line in self._arrived:
            said = line.heard("hello")
            if line.gone and line.node is not None:
                why = line.problems or [f"{line.gone} before the job began"]
                return [f"node {line.node}: {problem}" for problem in why]
            if said is None or "config" not in said or line in self.lines.values():
                continue
            line.node = node = int(said["node_rank"])
            problems = differences(mine, said)
            if not problems and (node == 0 or node in self.lines):
                problems = [
                    f"launch.node_rank={node}: two nodes have it, {said['host']} and "
                    f"{mine['host'] if node == 0 else self.lines[node].host}; give each its own"
                ]
            if problems:
                return problems
            line.host = said["host"]
            self.lines[node] = line
        return []


class Follower(Meeting):
    """Any other node."""

    def __init__(self, job: Job, rank: int, nnodes: int) -> None:
        super().__init__(job, rank, nnodes)
        host, _, port = self.endpoint.rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)  # until `begin`, where node 0 listens
        try:
            connection = connect(self.host, self.port, self._wait_s)
        except OSError as error:
            raise ConfigError([nobody(self.endpoint, self._wait_s, error)]) from error
        self._node0 = Line(connection, self._changed)
        self.lines = {0: self._node0}

    def agree(self, mine: dict[str, Any]) -> dict[str, Any] | None:
        """Say what this node would run; how the job ended, if it did before.

        Raises ConfigError with what node 0 has found wrong, on this node or another.
        """
        line = self._node0
        line.send("hello", **mine)
        patience_s = self._wait_s + LINGER_S
        if not self._until(lambda: line.heard("answer") or line.gone, patience_s) or line.gone:
            why = line.gone or f"did not answer within {patience_s:g} s"
            asked = f"launch.rdzv_endpoint={self.endpoint}: node 0 {why}; look at its own message"
            raise ConfigError(line.problems or [asked])
        finished: dict[str, Any] | None = (line.heard("answer") or {})["finished"]
        return finished

    def begin(self, attempt: int) -> None:
        """Wait for the store of this attempt. Raises ConfigError when node 0 is lost."""
        line = self._node0
        self._until(lambda: line.heard("begin", attempt) or line.gone, None)
        said = line.heard("begin", attempt)
        if said is None:
            raise ConfigError([f"node 0 {line.gone}; start all nodes again"])
        self.port = said["port"]

    def report(self, attempt: int, ended: dict[str, Any]) -> dict[str, Any] | None:
        """How the ranks of this node ended. Returns the outcome of the job; None: once more."""
        line = self._node0
        line.send("report", attempt=attempt, **ended)
        self._until(lambda: line.heard("decision", attempt) or line.gone, None)
        said = line.heard("decision", attempt)
        if said is None:
            return {"state": "failed", "message": f"node 0 {line.gone}"}
        outcome: dict[str, Any] | None = said["outcome"]
        return outcome


@contextmanager
def open_meeting(job: Job, adopted: bool) -> Iterator[Lead | Follower]:
    """Come together with the other nodes of the job, if it has any; leave it in the end, whatever
    happens. `adopted`: a launcher around paceline has brought the ranks together already.

    Raises ConfigError when node 0 can't be reached, or its port can't be had.
    """
    nnodes = 1 if adopted else int(job.config["launch"]["nnodes"])
    rank = 0 if nnodes == 1 else node_rank(job.config)
    meeting: Lead | Follower = Follower(job, rank, nnodes) if rank else Lead(job, nnodes)
    try:
        yield meeting
    except ConfigError as error:
        meeting.leave(error.problems)
        raise
    except BaseException:
        meeting.leave([])
        raise
    else:
        meeting.part()
