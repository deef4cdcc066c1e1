"""What a training loop costs beside the training: a raw PyTorch loop against paceline and peers.

    python benchmarks/loop_overhead.py [--rounds N] [--json FILE]

Every side trains the same job in this one process, on one thread: an MLP with GELU, batches drawn
from the same two tensors in memory, AdamW (fused: the fastest step there is, so that what lies
around it shows), gradients clipped at norm 1, a constant learning-rate schedule stepped every step,
cross-entropy, the C library's allocator keeping what is freed. The clipping is
torch.nn.utils.clip_grad_norm_ everywhere, through the library's own call where it has one.

- raw: a permutation an epoch, a slice of it a batch, both tensors indexed by it, `x[index]`; a
  second raw loop has `x.index_select(0, index)`, which is faster and which fewer people write.
- paceline: its `rank.build` and `rank.train` on a config composed from conf/, data=synthetic: the
  seeded stream, the full ledger, loss and gradient-norm curves, stop flag and progress as in a job.
  (Its progress file, 0.7 ms every half second, mostly falls into the untimed steps: 0.1 %.)
- Lightning (`barebones`), Lightning Fabric, Accelerate and HF Trainer, where installed: they get
  the second's batches ready-made through a torch DataLoader (batch_size=None, no collation), the
  fastest way in that all of them support.

Windows of some 30 to 100 ms take turns, short enough that most of them aren't interrupted. The
order rotates, and each round is followed by one in the reverse order, so that a drift of the
machine cancels in the pair; a pair of rounds gives one ratio side / raw. Reported: the median over
pairs, and Student's t interval over the medians of up to ten stretches of them, so that a few
interrupted windows don't decide. Before each window a few steps aren't timed. The time of a window
is read around it; in a peer's fit(), whose start and end aren't its loop, at the requests for its
first batch and for the one after its last.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loop_peers
import numpy as np
import torch
from loop_peers import PEERS
from loop_sides import Raw, Shape, Work

from paceline.rank.process import keep_freed_memory
from paceline.record.environment import cores
from paceline.record.measure import t_interval

STRETCHES = 10


@dataclass(frozen=True)
class Section:
    name: str
    shape: Shape
    steps: int  # in a window
    untimed: int  # before it
    more_rounds: int  # times --rounds: two sides alone are soon through a round
    target: float  # of paceline's ratio
    peers: bool


SECTIONS = (
    Section("a step of some 100 us", Shape(32, (64,), 4, batch=32), 100, 20, 1, 1.10, True),
    Section("a step of some 5 ms", Shape(32, (512, 512), 4, batch=256), 20, 2, 4, 1.01, False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="loop overhead of paceline and its peers")
    parser.add_argument("--rounds", type=int, default=60, help="an even number; default 60")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    if args.rounds < 2 or args.rounds % 2:
        parser.error(f"--rounds {args.rounds}: give an even number, 2 or more")
    torch.set_num_threads(1)
    loop_peers.quiet()
    steady = keep_freed_memory()
    print(
        f"torch {torch.__version__}, python {platform.python_version()}, one of {cores()} cores; "
        f"memory kept by the allocator: {'yes' if steady else 'this C library cannot'}"
    )
    sections = [measure(section, args.rounds * section.more_rounds) for section in SECTIONS]
    for section in sections:
        print_section(section)
    if args.json:
        result = {"torch": torch.__version__, "host_memory_steady": steady, "sections": sections}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(section: Section, rounds: int) -> dict[str, Any]:
    work = Work(section.shape)
    sides: dict[str, Any] = {"raw": Raw(work)}
    if section.peers:
        sides["raw, index_select"] = Raw(work, select=True)
    sides["paceline"] = work.paceline
    versions: dict[str, str | None] = dict.fromkeys(sides, f"torch {torch.__version__}")
    versions["paceline"] = "this checkout"
    for name, peer in PEERS.items() if section.peers else ():
        versions[name] = loop_peers.installed(peer)
        if versions[name] is not None:
            sides[name] = peer(work)
    before = {name: work.loss(side.model) for name, side in sides.items()}
    for side in sides.values():
        side.run(section.steps, section.untimed)
    gc.collect()
    gc.freeze()  # a collection then looks at no library's modules, for the good of all sides
    seconds = take_turns(sides, section, rounds)
    work.paceline.check(sides["raw"].steps_done)
    after = {name: work.loss(side.model) for name, side in sides.items()}
    for name in sides:
        assert after[name] < 0.9 * before[name], f"{name} did not train: {before} -> {after}"
    work.paceline.close()
    gc.unfreeze()

    rows = [row(n, versions[n], seconds, section.steps, section.target) for n in versions]
    for one in rows:
        one["loss"] = [before[one["side"]], after[one["side"]]] if one["side"] in sides else None
    return {"name": section.name, "steps_a_window": section.steps, "rounds": rounds, "rows": rows}


def take_turns(sides: dict[str, Any], section: Section, rounds: int) -> dict[str, list[float]]:
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        pair = number // 2 % len(names)
        order = names[pair:] + names[:pair]
        for name in order if number % 2 == 0 else reversed(order):
            gc.collect()
            seconds[name].append(sides[name].run(section.steps, section.untimed))
    return seconds


def row(
    name: str, version: str | None, seconds: dict[str, list[float]], steps: int, target: float
) -> dict[str, Any]:
    if name not in seconds:
        return {"side": name, "version": None, "step_us": None, "ratio": None, "ci95": None}
    mine = np.array(seconds[name]).reshape(-1, 2).sum(axis=1)
    raw = np.array(seconds["raw"]).reshape(-1, 2).sum(axis=1)
    ratios = mine / raw
    stretches = np.array_split(ratios, min(len(ratios), STRETCHES))
    interval = t_interval(np.array([np.median(stretch) for stretch in stretches]))
    one = {
        "side": name,
        "version": version,
        "step_us": statistics.median(seconds[name]) / steps * 1e6,
        "ratio": float(np.median(ratios)),
        "ci95": [interval.low, interval.high],
    }
    return one | ({"target": target} if name == "paceline" else {})


def print_section(section: dict[str, Any]) -> None:
    rounds, steps = section["rounds"], section["steps_a_window"]
    print(f"\n### {section['name']}: {rounds} rounds of {steps} steps a side\n")
    print(
        "| side              | version          | us a step | times raw | 95 %          | target |"
    )
    print(
        "|-------------------|------------------|----------:|----------:|---------------|--------|"
    )
    for one in section["rows"]:
        if one["ratio"] is None:
            figures = f"{'not installed':16} | {'':9} | {'':9} | {'':13} | {'':6}"
        else:
            low, high = one["ci95"]
            interval = "" if low is None or one["side"] == "raw" else f"{low:.3f} - {high:.3f}"
            target = f"{one['target']:.2f}" if "target" in one else ""
            figures = (
                f"{one['version']:16} | {one['step_us']:9.1f} | {one['ratio']:9.3f} "
                f"| {interval:13} | {target:6}"
            )
        print(f"| {one['side']:17} | {figures} |")


if __name__ == "__main__":
    main()
