"""Which nodes are in a job: node 0 lets them in until it begins, and lets lost ones go."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

from paceline.controller.agreement import differences, missing, too_late
from paceline.controller.line import Line, listen


class Membership:
    """`lines`: node -> the connection to it, of all that are in but node 0 itself. `arrived`: every
    connection that was made. `asked`: launch.nnodes. With `fewest` below `most`, a node that goes
    before the job begins is one that hasn't come; it may come again. `expected`: so many are waited
    for."""

    def __init__(
        self, asked: object, counts: tuple[int, int], expected: int, changed: threading.Condition
    ) -> None:
        self.lines: dict[int, Line] = {}
        self.arrived: list[Line] = []
        self.expected = expected
        self._asked, self._changed = asked, changed
        self._fewest, self._elastic = counts[0], counts[0] < counts[1]
        self._listener: socket.socket | None = None

    @property
    def nodes(self) -> list[int]:
        """Those that are in, by their own numbers. Their ranks follow each other in this order, so
        that the numbers of ranks have no gap where a node is lost."""
        return [0, *sorted(self.lines)]

    def open_door(self, port: int) -> None:
        """Raises ConfigError when the port can't be had."""
        self._listener = listen(port)
        threading.Thread(target=self._accept, daemon=True).start()

    def close_door(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()

    def admit(self, mine: dict[str, Any]) -> list[str]:
        """Seat those who have said who they are, alike with node 0; what is wrong with one."""
        for line in self.arrived:
            said = line.heard("hello")
            if line.gone and line.node is not None and not self._may_go(line):
                why = line.problems or [f"{line.gone} before the job began"]
                return [f"node {line.node}: {problem}" for problem in why]
            if said is None or "config" not in said or line in self.lines.values():
                continue
            if line.gone and self._elastic:
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

    def complete(self) -> bool:
        return len(self.nodes) >= self.expected

    def too_few(self, endpoint: str, waited_s: float) -> list[str]:
        """What to say of those that did not come; empty where the others are enough."""
        if len(self.nodes) >= self._fewest:
            return []
        late = [node for node in range(1, self.expected) if node not in self.lines]
        return [missing(node, self._asked, endpoint, waited_s) for node in late]

    def begin(self, endpoint: str) -> None:
        """Nobody else comes in; those at the door hear it."""
        self.close_door()
        for line in self.arrived:
            if line not in self.lines.values():
                line.send("left", node=0, problems=[too_late(endpoint)])
                line.close()

    def _may_go(self, line: Line) -> bool:
        if not self._elastic or line.problems:
            return False
        if line.node is not None and self.lines.get(line.node) is line:
            del self.lines[line.node]
        return True

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed: all are here
                return
            with self._changed:
                self.arrived.append(Line(connection, self._changed))
                self._changed.notify_all()
