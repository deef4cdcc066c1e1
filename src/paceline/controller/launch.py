"""Start the ranks of a job: torch elastic, fresh processes from a forkserver that holds torch.

The controller owns the signals: it passes Ctrl-C, SIGTERM and SIGUSR1 on to the ranks, which take
them as the stop flag, and ends them itself when they don't come to an end.
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
from pathlib import Path
from typing import Any

import psutil

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
    "KINETO_LOG_LEVEL": "5",  # the profiler announces its every start and stop otherwise
}
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
FORWARD_EVERY_S = 0.5


@dataclass
class Ended:
    """How the ranks ended. `exits`: local rank -> exit code of those that failed. `oom_kills`:
    how many processes of this machine the kernel ended meanwhile, for want of memory."""

    returned: dict[int, str] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    signal: int = 0
    killed: bool = False
    oom_kills: int = 0


def ensure_forkserver() -> int:
    """Start the forkserver, or find it running; its pid. From the main thread: the forkserver
    dies with the thread that started it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    server: Any = multiprocessing.forkserver._forkserver
    before = {name: os.environ.get(name) for name in FORKSERVER_ENV}
    # ignored by the forkserver, which a signal to the whole process group would end, ranks and all
    handlers = {s: signal.signal(s, signal.SIG_IGN) for s in FORWARDED}
    os.environ.update(FORKSERVER_ENV)
    try:
        server.ensure_running()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    return int(server._forkserver_pid)


def stop_forkserver() -> None:
    """End the forkserver that `ensure_forkserver` started, if any."""
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_pid is not None:
        server._stop()


def run_ranks(job_yaml: Path, nproc: int, stop_grace_s: float, launched_at: float) -> Ended:
    """Run `rank.main.run` in `nproc` fresh processes and wait for their end."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from paceline.rank.main import run

    server = ensure_forkserver()
    for chatty in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=f"{job_yaml.parent.name}-{os.getpid()}-{time.monotonic_ns()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.02,
        start_method="forkserver",
        logs_specs=_rank_logs(job_yaml.parent / "log"),
        signals_to_handle="SIGQUIT",  # it wants one; SIGHUP stays ignored under nohup
    )
    ended, oom_kills_before = Ended(), oom_kills()
    with _forwarding(server, stop_grace_s, ended):
        try:
            ended.returned = elastic_launch(config, run)(str(job_yaml), launched_at)
        except ChildFailedError as error:
            ended.exits = {rank: failure.exitcode for rank, failure in error.failures.items()}
    ended.oom_kills = oom_kills() - oom_kills_before
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
def _forwarding(server: int, grace_s: float, ended: Ended) -> Iterator[None]:
    """Pass signals on to the ranks, again and again, for a rank that is still starting misses the
    first; a second Ctrl-C, or the end of the grace time, kills them."""
    over = threading.Event()

    def send() -> None:
        number = signal.SIGKILL if ended.killed else ended.signal
        _signal_ranks(server, number, with_children=ended.killed)

    def pursue() -> None:
        deadline = time.monotonic() + grace_s
        while not over.wait(FORWARD_EVERY_S):
            ended.killed = ended.killed or time.monotonic() >= deadline
            send()

    def forward(number: int, frame: object) -> None:
        known = ended.signal
        ended.killed = ended.killed or bool(known and number == signal.SIGINT)
        ended.signal = number
        send()
        if not known:
            threading.Thread(target=pursue, daemon=True).start()

    here = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, forward) for s in FORWARDED} if here else {}
    quits = signal.getsignal(signal.SIGQUIT)
    try:
        yield
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        if here:
            signal.signal(signal.SIGQUIT, quits)


def _signal_ranks(server: int, number: int, with_children: bool = False) -> None:
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


def _rank_logs(directory: Path) -> Any:
    """Elastic's log specification for one file a rank: log/rank{N}.log, both streams."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class RankLogs(LogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            files, errors = {}, {}
            for local, env in envs.items():
                rank = env["RANK"]
                files[local] = str(directory / f"rank{rank}.log")
                errors[local] = str(directory / f"rank{rank}.elastic.json")
                env["TORCHELASTIC_ERROR_FILE"] = errors[local]
            return LogsDest(files, files, {}, {}, errors, os.devnull, os.devnull)

        @property
        def root_log_dir(self) -> str:
            return str(directory)

    return RankLogs(str(directory))
