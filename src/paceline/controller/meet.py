"""Several nodes meet before any rank starts, and part after the last rank has ended.

With launch.nnodes=LO:HI they begin with as many as have come, LO at least, and go on without those
that are lost. A node that comes later isn't taken in before the job is started again.

Node 0 listens at launch.rdzv_endpoint; every other node holds one connection to it, of lines of
JSON. One that ends, or is silent for launch.timeout_s, is a lost node: nothing waits without
bound. The ranks meet in a c10d store of node 0, on a port that it tells; not here, for that store
prints pages when its server goes, and doesn't say who has gone.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.controller.agreement import nobody
from paceline.controller.line import Line, connect, interface_of
from paceline.controller.membership import Membership
from paceline.controller.plan import Job
from paceline.controller.rules.nodes import expected_nodes, node_counts, node_rank
from paceline.types import ConfigError

BEAT_EVERY_S = 2.0
BEATS = 5
"""As many must fail to come before a node counts as silent, however short launch.timeout_s is."""

LINGER_S = 5.0
"""Node 0 stays this long to tell the others why it ends, and to hear that they have heard."""


class Meeting:
    """What both sides share. `lines`: node -> the connection to it; node 0 has one to every other
    node, any other node just one. `node_rank`: this node's own number, for good; `nnodes`: nodes at
    most. `nodes`: those that an attempt runs on, in the order of their ranks."""

    def __init__(self, job: Job, rank: int, nnodes: int) -> None:
        launch = job.config["launch"]
        self.node_rank, self.nnodes = rank, nnodes
        self.nodes = [rank]
        self.endpoint: str = launch["rdzv_endpoint"] or ""
        self.lines: dict[int, Line] = {}
        self._changed = threading.Condition()
        self._wait_s, self._silent_s = launch["meet_timeout_s"], launch["timeout_s"]
        self._settle_s = launch["timeout_s"] + launch["stop_grace_s"]
        self._alarmed = -1
        self._over = threading.Event()
        if self.nnodes > 1:
            threading.Thread(target=self._beat, daemon=True).start()

    @property
    def group_rank(self) -> int:
        """The place of this node among those of the attempt."""
        return self.nodes.index(self.node_rank)

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
        self._waited = False
        counts, asked = node_counts(job.config), job.config["launch"]["nnodes"]
        expected = expected_nodes(job.config) if nnodes > 1 else 1
        self._members = Membership(asked, counts, expected, self._changed)
        self.lines = self._members.lines
        if self.nnodes > 1:
            self._members.open_door(int(self.endpoint.rpartition(":")[2]))

    @property
    def expected(self) -> int:
        """So many nodes are waited for."""
        return self._members.expected

    def agree(self, mine: dict[str, Any], finished: dict[str, Any] | None) -> None:
        """Wait for the other nodes, and tell them to begin, or how the job ended before.

        Raises ConfigError, on all nodes, when too few come, or one says anything else than this.
        """
        problems: list[str] = []

        def complete() -> bool:
            problems.extend(self._members.admit(mine))
            return bool(problems) or self._members.complete()

        self._waited = not self._until(complete, self._wait_s)
        if self._waited:
            problems += self._members.too_few(self.endpoint, self._wait_s)
        if problems:
            raise ConfigError(problems)
        self._members.begin(self.endpoint)
        self.nodes = self._members.nodes
        for line in self.lines.values():
            line.send("answer", finished=finished, nodes=self.nodes)

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

    def let_go(self, lost: dict[int, str], attempt: int) -> None:
        """Go on without these nodes: node -> what became of it. One that is still there hears it,
        and ends."""
        for node, what in lost.items():
            line, said = self.lines.pop(node), f"node 0 went on without this node: it {what}"
            line.send("decision", attempt=attempt, outcome={"state": "failed", "message": said})
            line.close()
        self.nodes = self._members.nodes

    def decide(self, attempt: int, outcome: dict[str, Any] | None) -> None:
        """What comes after this attempt: another one, or the end with this outcome."""
        for line in self.lines.values():
            line.send("decision", attempt=attempt, outcome=outcome, nodes=self.nodes)

    def leave(self, problems: list[str]) -> None:
        arrived = self._members.arrived
        if self.nnodes > 1 and problems and not self._waited:
            # those that come a little late hear it too
            self._until(lambda: len(arrived) >= self.expected - 1, LINGER_S)
        self.lines = dict(enumerate(arrived))
        super().leave(problems)

    def part(self) -> None:
        lines = self.lines.values()
        self._until(lambda: all(line.heard("bye") or line.gone for line in lines), LINGER_S)
        super().part()

    def _close(self, word: str, problems: list[str]) -> None:
        super()._close(word, problems)
        self._store = None
        self._members.close_door()


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
        answer = line.heard("answer") or {}
        self.nodes = answer["nodes"]
        finished: dict[str, Any] | None = answer["finished"]
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
        if outcome is None:
            self.nodes = said["nodes"]
        return outcome


@contextmanager
def open_meeting(job: Job, adopted: bool) -> Iterator[Lead | Follower]:
    """Come together with the other nodes of the job, if it has any; leave it in the end, whatever
    happens. `adopted`: a launcher around paceline has brought the ranks together already.

    Raises ConfigError when node 0 can't be reached, or its port can't be had.
    """
    nnodes = 1 if adopted else node_counts(job.config)[1]
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
