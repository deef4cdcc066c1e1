"""A SLURM cluster of two nodes on this machine, for tests: started, asked, broken, cleared."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import psutil

HERE = Path(__file__).parent

SLOTS, FIRST_PORT, PORTS = 100, 20000, 100
"""Clusters that can run side by side on a machine, and the ports of each."""

NODES = ("n1", "n2")

UP = ("idle", "mixed", "allocated", "completing")
"""States of a node that can run jobs, as sinfo writes them; `idle*` doesn't answer."""


def missing(accounting: bool = True) -> str | None:
    """What this machine lacks for a cluster; None: nothing."""
    if os.geteuid() != 0:
        return "a SLURM cluster of our own needs root"
    programs = ["munged", "slurmctld", "slurmd", "srun", "ip", "unshare", "nsenter"]
    programs += ["slurmdbd", "mariadbd"] if accounting else []
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        return f"no {', '.join(absent)} on this machine; .ci/run says how to install SLURM"
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return f"this machine's name, {socket.gethostname()}, is not in /etc/hosts"
    probe = f"pl-{uuid.uuid4().hex[:8]}"
    spaces = ["--uts", "--mount", "--pid", "--fork", "--mount-proc"]
    for words in (["ip", "netns", "add", probe], ["unshare", *spaces, "true"]):
        tried = subprocess.run(words, capture_output=True, text=True)
        if tried.returncode:
            return f"no namespaces here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return None


class Cluster:
    """Nodes n1 and n2, each with its own name, processes and network, and one file system.

    `env`: the environment of a process that uses this cluster. It has the tests' Python first on
    its PATH, which sbatch hands on to jobs.
    """

    def __init__(self, accounting: bool = True, **settings: str) -> None:
        """`settings`: other variables of start-cluster without SLURM_LAB_, as GRACE="3"."""
        self.slot, self._lock = _take_slot()
        self.folder = Path(f"/tmp/pl-slurm-{self.slot}")  # holds sockets, so it must be short
        self.port = FIRST_PORT + PORTS * self.slot
        self.conf = self.folder / "etc" / "slurm.conf"
        self._lab = {
            "SLURM_LAB": str(self.folder),
            "SLURM_LAB_NET": "own",
            "SLURM_LAB_PORT": str(self.port),
            "SLURM_LAB_SUBNET": f"10.214.{self.slot}",
            "SLURM_LAB_ACCOUNTING": "yes" if accounting else "no",
        } | {f"SLURM_LAB_{key}": value for key, value in settings.items()}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = clean | {"SLURM_CONF": str(self.conf), "PATH": path}
        self.stop(release=False)  # what a killed test run left in this slot
        self.boot()

    def boot(self) -> None:
        """Start whatever of it doesn't run: all of it, or a node that lost power."""
        done = _script("start-cluster", self._lab, str(len(NODES)))
        assert done.returncode == 0, f"start-cluster: {done.stderr}"

    def stop(self, release: bool = True) -> None:
        done = _script("stop-cluster", self._lab)
        assert done.returncode == 0, f"stop-cluster: {done.stderr}"
        shutil.rmtree(self.folder, ignore_errors=True)
        if release:
            self._lock.close()

    def run(self, *words: str, timeout_s: float = 60) -> str:
        """What a command of SLURM's prints; the test fails if the command does."""
        done = subprocess.run(
            words, env=self.env, capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == 0, f"{words}: exit {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *words: str, cwd: Path | None = None) -> str:
        """The id of the job that `sbatch WORDS` makes."""
        said = self.run("sbatch", "--parsable", *(["-D", str(cwd)] if cwd else []), *words)
        return said.strip().partition(";")[0]

    def job(self, id: str) -> dict[str, str]:
        """`scontrol show job`, by SLURM's names: JobState, Reason, Restarts, ExitCode, NodeList."""
        line = self.run("scontrol", "show", "job", "-o", id).splitlines()[0]
        return dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|\s*$)", line))

    def wait_state(self, id: str, states: str | Iterable[str], timeout_s: float = 60) -> str:
        """Until the job is in one of these states (COMPLETED, RUNNING, ...): which."""
        wanted = [states] if isinstance(states, str) else list(states)
        deadline = time.monotonic() + timeout_s
        while (state := self.job(id)["JobState"]) not in wanted:
            assert time.monotonic() < deadline, f"job {id} isn't {wanted}: {self.job(id)}"
            time.sleep(0.1)
        return state

    def kill_node(self, name: str) -> None:
        """The node loses power: all its processes are gone at once; noticed within 40 s."""
        os.kill(self._pid(name), signal.SIGKILL)

    def unplug(self, name: str) -> None:
        subprocess.run(["ip", "link", "set", f"sl{self.port}{name}", "down"], check=True)

    def plug(self, name: str) -> None:
        subprocess.run(["ip", "link", "set", f"sl{self.port}{name}", "up"], check=True)

    def nodes(self) -> dict[str, str]:
        """Name -> state, as sinfo writes it: idle, mixed, allocated, down*, drained."""
        lines = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").splitlines()
        return {name: state for name, state in map(str.split, lines)}

    def queued(self) -> dict[str, str]:
        """Id -> state of every job that isn't over; of an array, every task."""
        lines = self.run("squeue", "-h", "-r", "-o", "%A %T").splitlines()
        return {id: state for id, state in map(str.split, lines)}

    def pids(self) -> set[int]:
        """Every process of this cluster: daemons, jobs, and commands that were given its env."""
        mark = f"SLURM_CONF={self.conf}".encode()
        return self._on_nodes() | {pid for pid in psutil.pids() if mark in _environment(pid)}

    def job_pids(self) -> set[int]:
        """Every process on its nodes that isn't the node itself."""
        return {pid for pid in self._on_nodes() if not _is_node(pid)}

    def guests(self) -> set[int]:
        """`pids` without the daemons: jobs and commands."""
        daemons = set()
        for file in (self.folder / "run").glob("*.pid"):
            try:
                daemon = psutil.Process(int(file.read_text()))
                daemons |= {daemon.pid}
                if file.stem not in NODES:
                    daemons |= {child.pid for child in daemon.children(recursive=True)}
            except (psutil.Error, ValueError, OSError):
                continue
        on_nodes = self._on_nodes()
        rest = self.pids() - daemons - on_nodes
        return rest | {pid for pid in on_nodes if not _is_node(pid)}

    def dead(self) -> list[str]:
        """Daemons and nodes that no longer run."""
        files = (self.folder / "run").glob("*.pid")
        return [file.stem for file in files if not _environment(self._pid(file.stem))]

    def end_all(self) -> None:
        """No job and no command is left."""
        subprocess.run(["scancel", *self.queued()], env=self.env, capture_output=True, timeout=60)
        for pid in self.guests():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def clear(self, within_s: float = 5) -> list[str]:
        """What a test left behind, which is ended: jobs, processes. Broken nodes are brought back:
        breaking them is what some tests are for."""
        self.mend()
        left = [f"job {id} is {state}" for id, state in self._unfinished(within_s).items()]
        if left:
            subprocess.run(["scancel", *self.queued()], env=self.env, timeout=60)
        deadline = time.monotonic() + within_s
        while (alive := self.guests()) and time.monotonic() < deadline:
            time.sleep(0.1)
        left += [f"process {_command_line(pid)}" for pid in sorted(alive)]
        if alive:
            self.end_all()
        self.mend()
        return left

    def mend(self, timeout_s: float = 90) -> None:
        """Bring back each node that has no power, no network, or is down or drained."""
        deadline = time.monotonic() + timeout_s
        for name in NODES:
            self.plug(name)
        while True:
            dead = self.dead()
            if set(dead) - set(NODES):  # without its controller nothing can be asked
                self.boot()
            states = self.nodes()
            bad = [name for name in NODES if states[name] not in UP]
            if not bad and not dead and all(map(self._answers, NODES)):
                return
            assert time.monotonic() < deadline, f"nodes stay {states}"
            for name in bad:
                words = ["scontrol", "update", f"nodename={name}", "state=resume"]
                subprocess.run(words, env=self.env, capture_output=True)
            if dead and set(bad) <= set(dead):  # it waits until all are up
                self.boot()
            time.sleep(0.2)

    def _unfinished(self, within_s: float) -> dict[str, str]:
        """A job that ends takes a moment: COMPLETING alone is waited for."""
        deadline = time.monotonic() + within_s
        while True:
            found = self.queued()
            if set(found.values()) != {"COMPLETING"} or time.monotonic() >= deadline:
                return found
            time.sleep(0.1)

    def _answers(self, name: str) -> bool:
        """Does its slurmd? A node that lost power stays `idle` for SLURM a while."""
        at = (f"10.214.{self.slot}.{10 + int(name[1:])}", self.port + 10)
        try:
            socket.create_connection(at, timeout=1).close()
        except OSError:
            return False
        return True

    def _pid(self, name: str) -> int:
        return int((self.folder / "run" / f"{name}.pid").read_text())

    def _on_nodes(self) -> set[int]:
        """The processes in the nodes' own process tables, whatever their environment says."""
        tables = set()
        for name in NODES:
            try:
                inside = psutil.Process(self._pid(name)).children()
            except (psutil.Error, OSError):
                continue  # it lost power
            tables |= {_table(child.pid) for child in inside}
        tables -= {None, _table(os.getpid())}
        return {pid for pid in psutil.pids() if _table(pid) in tables}


def _take_slot() -> tuple[int, IO[Any]]:
    """The first number that no other test run holds, and the open lock that holds it."""
    for slot in range(SLOTS):
        lock = open(f"/tmp/pl-slurm-{slot}.lock", "w")  # noqa: SIM115  held until the end
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        return slot, lock
    raise AssertionError(f"{SLOTS} clusters run on this machine")


def _script(name: str, lab: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    program = [str(HERE / name), *words]
    return subprocess.run(
        program, env=os.environ | lab, capture_output=True, text=True, timeout=120
    )


def _environment(pid: int) -> list[bytes]:
    """Empty for one that has ended, even if nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


def _table(pid: int) -> str | None:
    """Which process table it is in."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _is_node(pid: int) -> bool:
    """The first process of a node, or its slurmd; or gone meanwhile."""
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        return not words or process.name() == "slurmd" or "node-init" in " ".join(words[1:2])
    except psutil.Error:
        return True


def _command_line(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:200]
    except psutil.Error:
        return f"{pid}, gone meanwhile"
