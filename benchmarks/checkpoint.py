"""What saving and loading cost: checkpoint=sync, dcp and async beside a plain copy, write and read.

    python benchmarks/checkpoint.py [--rounds N] [--mb MB] [--rest SECONDS] [--json FILE]

One process, real AdamW training of an MLP whose state (parameters and both moments) has --mb
megabytes at least. In every round each of these happens once, in an order drawn anew:

- copy: all tensors of the state into memory that is there already; clone: into fresh memory.
- write: the bytes of the state, from memory, to a new file in blocks of 1 MiB, and fsync.
- sync, dcp, async: a save as a job does it: hashed, forced to the disk, read back and verified,
  committed. Blocked: until training may go on; durable: until committed. Nothing else runs until
  then; async+training: the same with training steps going on, whose slow-down is shown.
- read: the same bytes from the disk, hashed, in blocks of 1 MiB, the system's cache dropped before.
- load sync, load dcp: a resume as a job does it: all bytes verified, then into the model and the
  optimizer; the cache dropped before.

Reported: medians over rounds, least and most; and the ratios that are held to a target: medians of
those of two figures of the same round, and of the least of each, which says what a disk does that
nobody else uses. The first round, in which memory is touched for the first time, isn't
counted; its blocked time of async is shown. Before each write the disk rests, for one that is
shared gives bursts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from paceline import config
from paceline.checkpoint.shelf import Shelf, digest_of
from paceline.comm_hook.none import Plain
from paceline.precision.full import FullPrecision
from paceline.rank.process import keep_freed_memory
from paceline.types import Context, Run, TrainState, World

BLOCK = 1 << 20
WIDTH = 2048
COMMON = {
    "every_steps": 1_000_000_000,  # only when told to
    "keep_last": 1,
    "keep_every": None,
    "verify": True,
    "resume": "auto",
    "strict": False,
    "on_failure": "stop",
    "mtbf_s": 86400.0,
}
MODES = {
    "sync": {"_target_": "paceline.checkpoint.sync.Sync"},
    "dcp": {"_target_": "paceline.checkpoint.dcp.Dcp"},
    "async": {
        "_target_": "paceline.checkpoint.async_.Async",
        "overlap": "wait",
        "stager": "thread",
    },
}
TARGETS = {
    ("async blocked", "sync blocked"): 0.10,
    ("async blocked", "copy"): 2.0,
    ("dcp durable", "write"): 1.3,
    ("async durable", "write"): 1.3,
    ("load sync", "read"): 1.5,
    ("load dcp", "read"): 1.5,
}
Figures = dict[str, float]


class NoData:
    """Batches are drawn here: only the state is of interest."""

    sampling, global_batch_size = "seeded", 16

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None


def training(megabytes: int) -> TrainState:
    """12 bytes a parameter, in layers of WIDTH x WIDTH."""
    torch.manual_seed(0)
    layers = -(-megabytes * 1_000_000 // (12 * WIDTH * (WIDTH + 1)))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    data: Any = NoData()
    return TrainState(model, optimizer, scheduler, FullPrecision(), data, Plain())


def step(state: TrainState) -> float:
    start = time.perf_counter()
    state.optimizer.zero_grad()
    state.model(torch.ones(NoData.global_batch_size, WIDTH)).square().mean().backward()
    state.optimizer.step()
    state.scheduler.step()
    state.step += 1
    return time.perf_counter() - start


def opened(mode: str, where: Path) -> Any:
    world, run = World(0, 0, 0, 1, torch.device("cpu")), Run(1, 1, 0, None, 0, "cpu")
    context = Context(world, run, where, config.build, {"work_hash": "w"})
    return config.build(COMMON | MODES[mode], context)


class Bench:
    def __init__(self, where: Path, megabytes: int, rest_s: float) -> None:
        self.rest_s = rest_s
        self.where, self.state, self.resumed = where, training(megabytes), training(megabytes)
        step(self.state)
        self.savers = {mode: opened(mode, where / mode) for mode in MODES}
        own = [*self.state.model.state_dict().values()]
        own += [t for t in tree_leaves(self.state.optimizer.state_dict()) if torch.is_tensor(t)]
        self.tensors = [t.detach() for t in own]
        self.bytes = sum(t.nbytes for t in self.tensors)
        self.buffers = [t.clone() for t in self.tensors]
        self.sides: list[Callable[[], Figures]] = [
            self.copy,
            self.clone,
            self.write,
            lambda: self.save("sync"),
            lambda: self.save("dcp"),
            lambda: self.save("async"),
            self.beside_training,
            self.read,
            lambda: self.load("sync"),
            lambda: self.load("dcp"),
        ]

    def copy(self) -> Figures:
        start = time.perf_counter()
        for into, tensor in zip(self.buffers, self.tensors, strict=True):
            into.copy_(tensor)
        return {"copy": time.perf_counter() - start}

    def clone(self) -> Figures:
        start = time.perf_counter()
        kept = [tensor.clone() for tensor in self.tensors]
        seconds = time.perf_counter() - start
        assert len(kept) == len(self.tensors)
        return {"clone": seconds}

    def write(self) -> Figures:
        path = self.where / "raw"
        path.unlink(missing_ok=True)
        rest(self.rest_s)
        start = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for tensor in self.tensors:
                raw = memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy())
                for at in range(0, len(raw), BLOCK):
                    file.write(raw[at : at + BLOCK])
            os.fsync(file.fileno())
        return {"write": time.perf_counter() - start}

    def save(self, mode: str) -> Figures:
        rest(self.rest_s)
        self.state.step += 1
        saver = self.savers[mode]
        saver.save(self.state, self.state.step, now=True)
        while saver.save(self.state, 1, now=False) if mode == "async" else False:
            time.sleep(0.005)
        save = saver.report()["saves"][-1]
        assert save["state"] == "committed", save
        return {f"{mode} blocked": save["blocked_s"], f"{mode} durable": save["durable_s"]}

    def beside_training(self) -> Figures:
        rest(self.rest_s)
        alone = [step(self.state) for _ in range(5)]
        saver, beside = self.savers["async"], []
        saver.save(self.state, self.state.step, now=True)
        while saver.save(self.state, 1, now=False):
            beside.append(step(self.state))
        save = saver.report()["saves"][-1]
        slower = sum(beside) - len(beside) * statistics.median(alone)
        return {
            "async+training durable": save["durable_s"],
            "async+training slowed": max(0.0, slower),
            "a step": statistics.median(alone),
        }

    def read(self) -> Figures:
        forget(self.where / "raw")
        start = time.perf_counter()
        digest_of(self.where / "raw")
        return {"read": time.perf_counter() - start}

    def load(self, mode: str) -> Figures:
        (newest,) = Shelf(self.where / mode / "checkpoint").committed()
        for file in newest.iterdir():
            forget(file)
        start = time.perf_counter()
        opened(mode, self.where / mode).load(self.resumed)
        return {f"load {mode}": time.perf_counter() - start}


def rest(seconds: float) -> None:
    """What others left to be written is not this one's, nor the burst that they have used up."""
    os.sync()
    time.sleep(seconds)


def forget(file: Path) -> None:
    """Out of the system's cache."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def measure(rounds: int, megabytes: int, rest_s: float) -> tuple[list[Figures], int]:
    where = Path(tempfile.mkdtemp(prefix="checkpoint_", dir="."))
    try:
        bench = Bench(where, megabytes, rest_s)
        first = {}
        for side in bench.sides:  # memory, files and caches are there afterwards
            first |= side()
        found, order = [first], random.Random(0)
        for number in range(rounds):
            figures: Figures = {}
            for side in order.sample(bench.sides, len(bench.sides)):
                figures |= side()
            found.append(figures)
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for saver in bench.savers.values():
            saver.finish()
        return found, bench.bytes
    finally:
        shutil.rmtree(where)


def report(found: list[Figures], size: int) -> dict[str, Any]:
    first, *rounds = found
    print(f"state of {size / 1e6:,.0f} MB; seconds, median [least, most] of {len(rounds)} rounds\n")
    for name in first:
        each = [figures[name] for figures in rounds]
        print(f"{name:<24}{statistics.median(each):8.3f}  [{min(each):.3f}, {max(each):.3f}]")
    print(f"\nasync blocked, first save {first['async blocked']:8.3f}\n")
    ratios, met = [], True
    for (name, other), most in TARGETS.items():
        each = [figures[name] / figures[other] for figures in rounds]
        ratio = statistics.median(each)
        good = ratio <= most
        met = met and good
        least = min(r[name] for r in rounds) / min(r[other] for r in rounds)
        ratios.append(
            {"of": name, "to": other, "ratio": ratio, "least": least, "target": most, "each": each}
        )
        said = "ok" if good else "MISSED"
        print(
            f"{name} / {other:<14} {ratio:7.3f}  [{min(each):.3f}, {max(each):.3f}]  "
            f"at most {most}: {said}; least to least {least:.3f}"
        )
    return {"bytes": size, "first": first, "rounds": rounds, "ratios": ratios, "met": met}


def main() -> None:
    parser = argparse.ArgumentParser(description="Saving and loading beside plain copies and files")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--mb", type=int, default=504)
    parser.add_argument("--rest", type=float, default=1.5, help="seconds before each write")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    keep_freed_memory()  # as a rank does
    made = report(*measure(asked.rounds, asked.mb, asked.rest))
    if asked.json:
        asked.json.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
