"""A rank, from its first line to its last: world, build, train, gates, account."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from paceline import config
from paceline.rank import process
from paceline.rank.account import add_counter_runs, write_account, write_stopped
from paceline.rank.build import build
from paceline.rank.digests import write_digests
from paceline.rank.failure import is_communication, write_failure
from paceline.rank.first_step import FirstStep
from paceline.rank.gates import fingerprint
from paceline.rank.intervene import counter_runs
from paceline.rank.ledger import STEADY
from paceline.rank.loading import starting_workers
from paceline.rank.train import Parts, beyond_training, evaluate, train
from paceline.rank.world import (
    StopFlag,
    gather,
    max_over_ranks,
    open_world,
    short_timeouts,
)
from paceline.types import STOPS, Batch, Measure, World

COMPLETED, PREEMPTED, INTERRUPTED = "completed", "preempted", "interrupted"


def run(job_path: str, launched_at: float, store: Any = None) -> str:
    """Train the job of a frozen job.yaml as the rank that the environment says.

    `launched_at`: when the controller started the ranks, on the host's monotonic clock. Returns
    how it ended, the same on all ranks. Any exception leaves this rank's account in `log/`, beside
    the file; the job's own directory, which it names, is another one on nodes that aren't node 0.
    """
    path = Path(job_path)
    job = yaml.safe_load(path.read_text())
    rank = int(os.environ.get("RANK", "0"))
    if multiprocessing.parent_process() is not None:  # not under an outer launcher
        process.die_with_parent()
        for number in STOPS:  # until the group is up they just end us
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # it was started with them held back
    if sys.platform == "linux":  # else a rank's loader starts a forkserver of its own, which
        multiprocessing.set_start_method("fork", force=True)  # imports torch and outlives the rank
    process.log_to_stdout()
    at: dict[str, Any] = {"phase": "startup", "parts": None}
    try:
        return _run(job, Path(job["directory"]), launched_at, store, at)
    except BaseException as error:
        parts: Parts | None = at["parts"]
        training = parts is not None and at["phase"] == "train"
        write_failure(
            path.parent,
            rank,
            parts.ledger.phase() if parts is not None and training else at["phase"],
            parts.state.step if parts is not None and training else None,
            error,
            _explain(parts, error) if parts is not None else None,
        )
        raise
    finally:
        if at["parts"] is not None:
            at["parts"].compile.close()
        _end_workers()


def _run(
    job: dict[str, Any], directory: Path, launched_at: float, store: Any, at: dict[str, Any]
) -> str:
    cfg, requested = job["config"], job["requested"]
    torch.set_num_threads(requested["threads_per_rank"])
    launch = cfg["launch"]
    keeps = launch["host_memory"] == "steady" and process.keep_freed_memory()
    wrapped = requested["strategy"] != "single"
    patience_s = launch["startup_timeout_s"]
    with open_world(cfg["run"]["device"], patience_s, wrapped, store) as world:
        stop = StopFlag(world)
        stop.install()
        _same_job_everywhere(job, world)
        spans = {"startup": time.perf_counter() - launched_at}

        at["phase"], start = "build", time.perf_counter()
        parts, init_digest = build(cfg, directory, world, stop, job["nudge"], job["identity"])
        at["parts"] = parts
        spans["build"] = time.perf_counter() - start

        at["phase"], start = "load", time.perf_counter()
        first = parts.checkpoint.load(parts.state)
        if job["digests"]:
            write_digests(parts.state, world, directory)
        before = fingerprint(parts.state.model)
        if first:
            spans["load"] = time.perf_counter() - start
        start = time.perf_counter()
        source = _batches(parts, first)
        measure: Measure = config.settings(cfg["measure"])
        check = FirstStep(parts, measure.gradient_check, first, before)
        parts.batches = itertools.chain(check.batches(source), source)
        parts.after_first_step += [
            partial(_look, check, at),
            partial(short_timeouts, launch["timeout_s"]),
        ]
        spans["loader_start"] = time.perf_counter() - start

        at["phase"] = "train"
        with _saved(parts, at):
            with parts.profiler:
                done = train(parts, first, parts.run.steps)
            at["phase"], start = "checkpoint", time.perf_counter()
        spans["join"] = time.perf_counter() - start
        if stop.settle():
            return _stopped(parts, stop, directory)

        at["phase"], start = "evaluate", time.perf_counter()
        eval_loss = evaluate(parts, parts.run.eval_batches)
        spans["evaluate"] = time.perf_counter() - start

        at["phase"] = "train"
        done += _extra_windows(parts, measure, done)

        at["phase"] = "account"
        known: dict[str, Any] = {"first_step": first, "eval_loss": eval_loss}
        known |= {"gradient": check.gradient, "coupled_by": check.coupled_by}
        known["init_digest"] = init_digest
        spans["gates"] = check.seconds
        spans["ended"] = time.perf_counter()
        spans["whole"] = spans["ended"] - launched_at
        host_memory = "steady" if keeps else "system"
        record = write_account(
            parts, directory, requested, host_memory, before, spans, known, done - first
        )
        at["phase"], start = "intervene", time.perf_counter()
        asked = cfg["diagnose"].get("counter_runs") or []
        found = counter_runs(parts, asked, measure, done, record)
        if found and record is not None:
            add_counter_runs(directory, record, found, time.perf_counter() - start)
        parts.batches = iter(())  # lets the loader's workers end before the group does
    return COMPLETED


@contextmanager
def _saved(parts: Parts, at: dict[str, Any]) -> Iterator[None]:
    """What is being saved in the background is committed before this rank goes on, or ends for
    another reason: whatever broke the training, that state was good."""
    try:
        yield
    except BaseException as error:
        if not is_communication(error):  # then no collective of a save can end either
            try:
                parts.checkpoint.finish()
            except Exception as problem:
                print(f"WARNING the last checkpoint was not finished: {problem}", flush=True)
        raise
    parts.checkpoint.finish()


def _explain(parts: Parts, error: BaseException) -> str | None:
    wrapper = getattr(parts.strategy, "explain", None)
    said: str | None = wrapper(error, parts.model) if wrapper is not None else None
    return said or parts.compile.explain(error)


def _look(check: FirstStep, at: dict[str, Any]) -> bool:
    at["phase"] = "gates"
    again = check()
    at["phase"] = "train"
    return again


def _batches(parts: Parts, first_step: int) -> Iterator[Batch]:
    """The micro-batches, from workers where the data has some."""
    with starting_workers():
        return iter(parts.state.data.batches(first_step))


def _end_workers() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would raise an error about each
    for worker in multiprocessing.active_children():
        worker.kill()


def _same_job_everywhere(job: dict[str, Any], world: World) -> None:
    """Every rank must have read the same config; else name the keys that differ."""
    if len(set(gather(job["identity"]["config_hash"], world))) == 1:
        return
    flat = [dict(config.leaves(job["config"])) for job in gather(job, world)]
    keys = sorted({k for one in flat for k in one if any(o.get(k) != one[k] for o in flat)})
    raise RuntimeError(f"the ranks have different configs; they differ in {', '.join(keys)}")


def _stopped(parts: Parts, stop: StopFlag, directory: Path) -> str:
    parts.curves.fold(parts.world)  # raises if that is why all stopped
    write_stopped(parts, directory)
    saves = parts.checkpoint.report()["saves"]
    saved = any(s["step"] == parts.state.step and s["state"] == "committed" for s in saves)
    print(
        f"stopped by {signal.Signals(stop.signal).name} after step {parts.state.step}", flush=True
    )
    return PREEMPTED if saved and stop.signal != signal.SIGINT else INTERRUPTED


def _extra_windows(parts: Parts, measure: Measure, done: int) -> int:
    """Go on beyond the training until `measure.window_s` of steady steps are measured; returns
    the number of extra steps. The learning rate stays where training ended."""
    if parts.state.data.num_batches() is not None or measure.window_s == 0:
        return 0
    beyond = beyond_training(parts)
    reached, cold = done, max(0, parts.warmup_steps - len(parts.ledger.steps().step))
    if cold:  # resumed near its end
        beyond.refill_steps = cold
        reached = train(beyond, done, done + cold, extra=True)
        beyond.refill_steps = parts.refill_steps
    extra = _missing_steps(parts, measure.window_s)
    if extra and reached == done + cold:
        reached = train(beyond, reached, reached + extra + parts.refill_steps, extra=True)
    parts.units_used, parts.micro_batches_used = beyond.units_used, beyond.micro_batches_used
    return reached - done


def _missing_steps(parts: Parts, window_s: float) -> int:
    """Steady steps that still have to be measured, the same number on all ranks."""
    steps = parts.ledger.steps()
    steady = steps.step_s[steps.tag == STEADY]
    wanted_s = window_s - float(steady.sum())
    missing = max(0, math.ceil(wanted_s / max(steps.typical_s(), 1e-9)))
    return int(max_over_ranks(torch.tensor([missing]), parts.world)[0])
