"""Start the ranks of a job: torch elastic, fresh processes from a forkserver that holds torch.

The controller owns the signals: it passes STOPS on to the ranks, which take them as the stop
flag, and ends them itself when they don't come to an end.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil

from paceline.controller.elastic import environment, fixed, rank_setup
from paceline.controller.meet import Follower, Lead
from paceline.controller.session import SESSION, Interrupted
from paceline.record.failure import in_order, read_failures
from paceline.types import STOPS

Meeting = Lead | Follower

PRELOAD = [
    "paceline.rank.bound",
    "torch",
    "torch._dynamo",  # every optimizer imports it; inductor itself stays out: it starts threads
    "torch.distributed.elastic.multiprocessing.api",
    "paceline.rank.main",
    "hydra.utils",
]
FORKSERVER_ENV = {
    "PYTHONSAFEPATH": "1",  # a random.py in the working directory must not be imported
    "KINETO_LOG_LEVEL": "6",  # the profiler announces its every start and stop otherwise
}
AGENT_ENV = {
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT",  # it wants one; SIGHUP stays ignored under nohup
    "TORCH_ELASTIC_WORKER_IDENTICAL": "1",  # ranks follow from the node's, nobody is asked
}
CHATTY = (
    "torch.distributed.elastic",
    "torch.distributed.elastic.agent.server.api",  # has a level of its own
    "torch.multiprocessing.spawn",
)
LOOK_EVERY_S = 0.5


@dataclass
class Ended:
    """How the ranks ended, by rank. `nodes`: those that they ran on, in their order; empty: as
    planned, or unknown under an outer launcher. `exits`: of those that failed by themselves.
    `failures`: their own accounts. `oom_kills`: how many processes of this machine the kernel
    ended meanwhile, for want of memory. `lost`: node -> what became of it. `put_down`: ranks here
    were killed because another had failed. `use`: `utilisation` of the record, of this node."""

    returned: dict[int, str] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    exits: dict[int, int] = field(default_factory=dict)
    signal: int = 0
    killed: bool = False
    oom_kills: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    put_down: bool = False
    use: dict[str, Any] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """For another node, as JSON."""
        names = ("signal", "killed", "oom_kills", "failures")
        pairs = {"returned": list(self.returned.items()), "exits": list(self.exits.items())}
        return pairs | {name: getattr(self, name) for name in names}

    def add(self, reports: dict[int, dict[str, Any]], lost: dict[int, str]) -> None:
        """What the other nodes reported, and which of them are lost."""
        for said in reports.values():
            self.returned |= dict(said["returned"])
            self.exits |= dict(said["exits"])
            self.signal = self.signal or said["signal"]
            self.killed = self.killed or said["killed"]
            self.oom_kills += said["oom_kills"]
            self.failures += said["failures"]
        self.failures = in_order(self.failures)
        self.lost |= lost


def ensure_forkserver() -> int:
    """Start the forkserver, or find it running; its pid. From the main thread: the forkserver
    dies with the thread that started it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # a worker of joblib's has a method of its own, which ranks would be told to take on
        multiprocessing.set_start_method("forkserver", force=True)
    server: Any = multiprocessing.forkserver._forkserver
    before = {name: os.environ.get(name) for name in FORKSERVER_ENV}
    # it ignores SIGINT and SIGTERM by itself, and of what ends it says a lot in the middle of ours;
    # started below, it would let through what is held back
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    # the forkserver is started with them held back and stays so, for a signal to the whole process
    # group would end it, ranks and all. Not ignored here meanwhile: the kernel hands a signal that
    # this thread holds back to any other thread, a library's, and one that is ignored is lost there
    let_through = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    os.environ.update(FORKSERVER_ENV)
    try:
        server.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, let_through)  # what came meanwhile raises here
    return int(server._forkserver_pid)


def stop_forkserver() -> None:
    """End the forkserver that `ensure_forkserver` started, if any."""
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_pid is not None:
        server._stop()


def run_ranks(
    frozen: Path, launch: dict[str, Any], nproc: int, meeting: Meeting, attempt: int, began: float
) -> Ended:
    """Run `rank.main.run` in `nproc` fresh processes on this node and wait for their end.

    `frozen`: what they read; their logs lie beside it. `attempt`: how often ranks were started
    again, the same on all nodes. `began`: of this attempt, on the host's monotonic clock.
    """
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    from paceline.rank.main import run

    server = ensure_forkserver()
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    ended, oom_kills_before = Ended(), oom_kills()
    log = frozen.parent / "log"
    with _guarding(server, launch["stop_grace_s"], ended, meeting, attempt, log):
        meeting.begin(attempt)
        spec = WorkerSpec(
            role="rank",
            local_world_size=nproc,
            entrypoint=run,
            args=(str(frozen), began),
            rdzv_handler=fixed(meeting, f"{frozen.parent.name}-{os.getpid()}-{attempt}"),
            max_restarts=0,  # all nodes restart together: controller/job.py
            monitor_interval=0.02,
        )
        agent = LocalElasticAgent(
            spec,
            logs_specs=rank_setup(log, environment(launch, meeting), attempt),
            start_method="forkserver",
            exit_barrier_timeout=0.001,  # the meeting's parting takes its place
        )
        os.environ |= AGENT_ENV
        result = agent.run()
    if result.is_failed():
        exits = {rank: failure.exitcode for rank, failure in result.failures.items()}
        ours = -signal.SIGKILL if ended.put_down else 0
        ended.exits = {rank: code for rank, code in exits.items() if code != ours}
        meeting.alarm(attempt)
    else:
        ended.returned = result.return_values
    ended.oom_kills = oom_kills() - oom_kills_before
    ended.failures = read_failures(frozen.parent)
    return ended


def oom_kills() -> int:
    """Processes that the kernel has ended so far because memory ran out, its own or a cgroup's;
    0 where it doesn't count them."""
    try:
        counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:  # not Linux
        return 0
    return int(counters.get("oom_kill", 0))


@contextmanager
def _guarding(
    server: int, grace_s: float, ended: Ended, meeting: Meeting, attempt: int, log: Path
) -> Iterator[None]:
    """Pass signals on to the ranks, again and again, for a rank that is still starting misses the
    first; a second Ctrl-C, or the end of the grace time, kills them. So does the end of the grace
    time after any rank has failed, here or on another node, for those that don't notice."""
    over = threading.Event()

    def send() -> None:
        number = signal.SIGKILL if ended.killed else ended.signal
        signal_ranks(server, number, with_children=ended.killed)

    def watch() -> None:
        deadline = put_down = float("inf")
        while not over.wait(LOOK_EVERY_S):
            now = time.monotonic()
            if ended.signal:
                deadline = min(deadline, now + grace_s)
                ended.killed = ended.killed or now >= deadline
                send()
            if put_down == float("inf"):
                here = any(log.glob("rank*.failure.json"))
                if here:
                    meeting.alarm(attempt)
                if here or meeting.trouble(attempt):
                    put_down = now + grace_s
            elif now >= put_down:
                ended.put_down = True
                signal_ranks(server, signal.SIGKILL, with_children=True)

    def forward(number: int, frame: object) -> None:
        ended.killed = ended.killed or bool(ended.signal and number == signal.SIGINT)
        ended.signal = number
        send()

    here = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, forward) for s in STOPS} if here else {}
    quits = signal.getsignal(signal.SIGQUIT)
    threading.Thread(target=watch, daemon=True).start()
    try:
        if SESSION.heard:  # while things were imported, say, by something that swallowed it
            raise Interrupted("interrupted")
        yield
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        if here:
            signal.signal(signal.SIGQUIT, quits)


def processes() -> list[psutil.Process]:
    """The ranks on this node and all that they started, loader workers too."""
    server: Any = multiprocessing.forkserver._forkserver
    try:
        return psutil.Process(server._forkserver_pid or 0).children(recursive=True)
    except psutil.Error:
        return []


def signal_ranks(server: int, number: int, with_children: bool = False) -> None:
    """`with_children`: their loader workers too, which only notice within seconds."""
    try:
        ranks = psutil.Process(server).children(recursive=with_children)
    except psutil.NoSuchProcess:
        return
    for rank in ranks:
        try:
            rank.send_signal(number)
        except psutil.NoSuchProcess:
            continue
