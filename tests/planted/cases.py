"""Jobs with a known bottleneck: for each kind, variants by seed that differ in how large the plant
is, and in what else is planted beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """`words` of a command that runs it. `plants`: the bounds that were planted, each of which can
    be taken out. `link_mbit`: of the network between its ranks; None: as fast as the host's."""

    kind: str
    seed: int
    words: list[str]
    plants: list[str]
    link_mbit: int | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"


@dataclass
class Draw:
    """Random settings of one case: all it draws comes from (kind, seed)."""

    random: np.random.Generator

    def between(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))

    def words(self, **plants: float) -> list[str]:
        """Settings that plant so many ms a step of each; a batch is 16 items."""
        made = {
            "wait": lambda ms: f"data.item_wait_s={max(ms / 16 - 0.06, 0.02) / 1e3:.6f}",
            "decode": lambda ms: f"data.item_decode_kib={max(round(ms * DECODE_KIB_A_MS / 16), 1)}",
            "calls": lambda ms: f"model.python_calls={round(ms * CALLS_A_MS)}",
            "stand": lambda ms: f"model.host_wait_s={ms / 1e3:.6f}",
            "matmul": lambda ms: f"model.matmul={round(MATMUL_AT_10_MS * (ms / 10) ** 0.5)}",
            "parameters": lambda ms: f"model.parameters={round(ms * PARAMETERS_A_MS)}",
        }
        return [made[name](ms) for name, ms in plants.items()]


DECODE_KIB_A_MS, CALLS_A_MS, PARAMETERS_A_MS, MATMUL_AT_10_MS = 300, 500, 30, 700
"""About what a millisecond buys on a core of a server. The truth of a case is measured: these only
place it."""

ONE = ["launch.threads_per_rank=1", "measure.window_s=0.5"]
TWO = [*ONE, "strategy=ddp", "launch.nproc=2"]

SIDE = {"input": "wait", "host": "calls", "compute": "matmul", "optimizer": "parameters"}
"""Bound -> what is planted of it beside another one."""


def slow_dataset(draw: Draw) -> tuple[list[str], list[str]]:
    main = draw.between(6, 14)
    words, beside = _beside(draw, main, "host", "compute", "optimizer")
    return [*ONE, *draw.words(wait=main), *words], ["input", *beside]


def decode_bound(draw: Draw) -> tuple[list[str], list[str]]:
    main = draw.between(6, 14)
    words, beside = _beside(draw, main, "host", "compute", "optimizer")
    return [*ONE, *draw.words(decode=main), *words], ["input", *beside]


def too_few_workers(draw: Draw) -> tuple[list[str], list[str]]:
    """One worker works while the step does: a step is as long as the longer of the two."""
    work = draw.between(2, 4)
    words, beside = _beside(draw, work / 0.25, "host", "compute", most=0.25)
    main = work * draw.between(3, 6)
    return [*ONE, "data.loader.num_workers=1", *draw.words(wait=main), *words], ["input", *beside]


def throttled_link(draw: Draw) -> tuple[list[str], list[str]]:
    width = int(draw.between(200, 400))
    words, beside = _beside(draw, 15, "host", "input")
    return [*TWO, f"model.width={width}", "model.layers=4", *words], ["communication", *beside]


def slow_rank(draw: Draw) -> tuple[list[str], list[str]]:
    main = draw.between(8, 16)
    words, beside = _beside(draw, main, "host", "input")
    slow = [f"model.slow_rank={int(draw.random.integers(2))}", f"model.slow_s={main / 1e3:.6f}"]
    return [*TWO, *slow, *words], ["straggler", *beside]


def python_overhead(draw: Draw) -> tuple[list[str], list[str]]:
    main = draw.between(6, 14)
    words, beside = _beside(draw, main, "input", "compute", "optimizer")
    batch = f"data.global_batch_size={int(draw.random.integers(2, 8))}"
    return [*ONE, batch, *draw.words(calls=main), *words], ["host", *beside]


def huge_matmul(draw: Draw) -> tuple[list[str], list[str]]:
    main = draw.between(10, 30)
    words, beside = _beside(draw, main, "optimizer", "host")
    batch = ["data.global_batch_size=64", "optimizer=sgd", "optimizer.lr=0.001"]
    return [*ONE, *batch, *draw.words(matmul=4 * main), *words], ["compute", *beside]


def many_parameters(draw: Draw) -> tuple[list[str], list[str]]:
    main = draw.between(8, 20)
    words, beside = _beside(draw, main, "input", "host")
    batch = f"data.global_batch_size={int(draw.random.integers(2, 8))}"
    return [*ONE, batch, *draw.words(parameters=main), *words], ["optimizer", *beside]


def new_shapes(draw: Draw) -> tuple[list[str], list[str]]:
    words, beside = _beside(draw, 6, "input", "optimizer")
    compiled = ["compile=inductor", "compile.backend=aot_eager", "compile.mode=null"]
    compiled += ["compile.dynamic=false", "compile.recompile_limit=400"]
    compiled += ["compile.compare_eager=false", "data.length=300"]
    every = [f"data.new_length_every={int(draw.random.integers(4, 9))}"]
    return [*ONE, *compiled, *every, *words], ["recompile", *beside]


def blocking_checkpoint(draw: Draw) -> tuple[list[str], list[str]]:
    words, beside = _beside(draw, 6, "input", "host")
    size = [f"model.width={int(draw.between(700, 1000))}", "data.global_batch_size=4"]
    every = f"checkpoint.every_steps={int(draw.random.integers(2, 5))}"
    return [*ONE, "checkpoint=sync", every, "optimizer=sgd", *size, *words], [
        "checkpoint",
        *beside,
    ]


def host_sync(draw: Draw) -> tuple[list[str], list[str]]:
    main = draw.between(5, 15)
    words, beside = _beside(draw, main, "input", "compute", "optimizer")
    return [*ONE, *draw.words(stand=main), *words], ["host", *beside]


def healthy(draw: Draw) -> tuple[list[str], list[str]]:
    """Layers of a usual size, a batch that fills them, a loader that keeps up."""
    size = [
        f"model.width={int(draw.between(256, 512))}",
        f"model.layers={draw.random.integers(3, 7)}",
    ]
    batch = f"data.global_batch_size={int(draw.random.integers(128, 257))}"
    return [*ONE, *size, batch, "optimizer=sgd", "data.length=2"], ["compute"]


KINDS: dict[str, Callable[[Draw], tuple[list[str], list[str]]]] = {
    kind.__name__: kind
    for kind in (
        slow_dataset,
        decode_bound,
        too_few_workers,
        throttled_link,
        slow_rank,
        python_overhead,
        huge_matmul,
        many_parameters,
        new_shapes,
        blocking_checkpoint,
        host_sync,
        healthy,
    )
}


def case(kind: str, seed: int) -> Case:
    draw = Draw(np.random.default_rng([seed, list(KINDS).index(kind)]))
    words, plants = KINDS[kind](draw)
    link = int(draw.between(100, 300)) if kind == "throttled_link" else None
    return Case(kind, seed, ["experiment=planted", *words, f"run.seed={seed}"], plants, link)


def _beside(
    draw: Draw, main_ms: float, *bounds: str, most: float = 0.35
) -> tuple[list[str], list[str]]:
    """One or two other plants, up to `most` of the main one each; words, and their bounds."""
    count = int(draw.random.integers(1, 3))
    chosen = list(draw.random.choice(bounds, min(count, len(bounds)), replace=False))
    plants = {SIDE[bound]: main_ms * draw.between(0.05, most) for bound in chosen}
    return draw.words(**plants), [str(bound) for bound in chosen]
