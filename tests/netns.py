"""Two nodes for a test: the same command on both, on this machine or in network namespaces."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import netns
from tests.conftest import Command, Done


class Nodes:
    """`nodes(words)`: run on both and wait. `own`: words of one node. `shared`: both in the same
    folder, as on a shared file system; else each in its own."""

    def __init__(self, command: Command, pair: tuple[netns.Node, netns.Node] | None = None) -> None:
        self.command, self.pair = command, pair
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.endpoint = f"{pair[0].address if pair else '127.0.0.1'}:{port}"

    def folder(self, node: int, shared: bool = False) -> Path:
        path = self.command.cwd if shared else self.command.cwd / f"on{node}"
        path.mkdir(exist_ok=True)
        return path

    def write(self, name: str, text: str) -> None:
        for path in (self.command.cwd, self.folder(0), self.folder(1)):
            (path / name).write_text(text)

    def start(
        self, node: int, *words: str, shared: bool = False, before: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """`before`: words of a program that runs the command."""
        where = [f"launch.rdzv_endpoint={self.endpoint}", f"launch.node_rank={node}"]
        program = [*before, sys.executable, "-m", "paceline"]
        if self.pair is not None:
            program = [*self.pair[node].prefix, *program]
        cwd = self.folder(node, shared)
        return self.command.start("launch.nnodes=2", *where, *words, program=program, cwd=cwd)

    def wait(self, processes: list[subprocess.Popen[str]], timeout_s: float = 150) -> list[Done]:
        done = []
        for node, process in enumerate(processes):
            ended = self.command.wait(process, timeout_s)
            done.append(Done(ended.code, ended.out, ended.err, self.folder(node)))
        return done

    def __call__(
        self, *words: str, own: tuple[list[str], list[str]] = ([], []), shared: bool = False
    ) -> list[Done]:
        started = [self.start(n, *words, *own[n], shared=shared) for n in (1, 0)]
        return self.wait(started[::-1])


@pytest.fixture
def pair() -> Iterator[tuple[netns.Node, netns.Node]]:
    """Two network namespaces, joined by a link."""
    lacks = netns.missing()
    if lacks is not None:
        pytest.skip(lacks)
    with netns.two_nodes() as made:
        yield made
