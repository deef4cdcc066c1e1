"""The loader's ceiling: a torch DataLoader over items made as pictures are, nobody training."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

from paceline.controller.doctor.asked import ask

BATCH, SHAPE = 32, (3, 224, 224)
MADE_FROM = (3, 256, 256)
BATCH_BYTES = 4 * BATCH * SHAPE[0] * SHAPE[1] * SHAPE[2]
PREFETCH = 2
"""Batches that each worker is ahead, the loader's own default."""

SECONDS, QUICK_SECONDS = 1.0, 0.4
LIMIT_S = 90.0


def in_flight_bytes(workers: int) -> int:
    """Of batches that lie in shared memory at once: those ahead, and the one in use."""
    return (PREFETCH * workers + 1) * BATCH_BYTES


def counts(cores: int, quick: bool, shared_free_bytes: int | None) -> list[int]:
    """Of workers: 0, 1, 2, 4, ... and as many as cores, while their batches fit."""
    doubled = [n for n in (0, 1, 2, 4, 8, 16, 32, 64, 128) if n < cores]
    wanted = [0, cores] if quick else [*doubled, cores]
    free = float("inf") if shared_free_bytes is None else shared_free_bytes
    return [n for n in wanted if n == 0 or in_flight_bytes(n) < free]


def loader_facts(cores: int, quick: bool, shared_free_bytes: int | None) -> dict[str, Any]:
    """rows: workers, batches_per_s. `error`: what broke it."""
    workers = counts(cores, quick, shared_free_bytes)
    seconds = QUICK_SECONDS if quick else SECONDS
    (answer,) = ask(measure, [(workers, seconds)], LIMIT_S)
    facts = {"batch": [BATCH, *SHAPE], "batch_bytes": BATCH_BYTES, "cores": cores}
    return facts | {"rows": [], "error": answer.why} | (answer.value or {})


def measure(workers: list[int], seconds: float) -> dict[str, Any]:
    """In a process of its own, one thread each, as loader workers are."""
    import torch

    torch.set_num_threads(1)
    return {"rows": [{"workers": n, "batches_per_s": _rate(n, seconds)} for n in workers]}


def _rate(workers: int, seconds: float) -> float:
    """Batches a second, for `seconds` at least and 3 batches. Those that were ready before anyone
    asked for them don't count."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        _pictures(),
        batch_size=BATCH,
        num_workers=workers,
        prefetch_factor=PREFETCH if workers else None,
        multiprocessing_context="fork" if workers else None,
    )
    batches = iter(loader)
    for _ in itertools.islice(batches, 1 + PREFETCH * workers):
        pass
    start, number = time.perf_counter(), 0
    while number < 3 or time.perf_counter() - start < seconds:
        next(batches)
        number += 1
    return number / (time.perf_counter() - start)


def _pictures() -> Any:
    """Map-style: bytes that are shifted by the index, resized and made float32: what is done to a
    picture once it is decoded."""
    import torch
    from torch.nn.functional import interpolate
    from torch.utils.data import Dataset

    class Pictures(Dataset[torch.Tensor]):
        def __init__(self) -> None:
            self._bytes = torch.arange(math.prod(MADE_FROM)).to(torch.uint8).view(MADE_FROM)

        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, index: int) -> torch.Tensor:
            whole = self._bytes.roll(index % MADE_FROM[2], -1).to(torch.float32).div_(255)
            return interpolate(whole[None], SHAPE[1:], mode="bilinear", antialias=True)[0]

    return Pictures()
