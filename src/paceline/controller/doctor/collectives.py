"""All-reduce between the ranks at hand, over sizes: those of an outer launcher, or own ones."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.controller.doctor.asked import Answer, Refused, ask

KIB = 1024
SIZES = (4, 4 * KIB, 64 * KIB, KIB**2, 16 * KIB**2, 64 * KIB**2)
QUICK_SIZES = (4, KIB**2, 64 * KIB**2)
REPEATS = (5, 100)
"""Fewest and most of a size; between them, as many as fit in the time of a size."""

SIZE_S, QUICK_SIZE_S = 0.5, 0.2
MEASURE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Place:
    """Which rank a process is. `file`: where ranks of this machine meet; None: at the launcher's
    MASTER_ADDR and MASTER_PORT."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    file: str | None = None


def of_launcher() -> Place:
    """The place of this process under torchrun, or whatever else sets RANK and WORLD_SIZE."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return Place(rank, world, int(os.environ.get("LOCAL_RANK", rank % local)), local)


def between_own(nproc: int, quick: bool, wait_s: float) -> dict[str, Any]:
    """The facts, by `nproc` ranks on this machine, started for it."""
    with TemporaryDirectory(prefix="paceline-doctor-") as folder:
        meet = str(Path(folder) / "store")
        places = [Place(rank, nproc, rank, nproc, meet) for rank in range(nproc)]
        return _facts(places, quick, wait_s)


def between_launched(quick: bool, wait_s: float) -> dict[str, Any]:
    """This process's part in it; the facts are whole on rank 0. Not the launcher's process itself
    is the rank, so that nothing which breaks there ends it."""
    return _facts([of_launcher()], quick, wait_s)


def _facts(places: list[Place], quick: bool, wait_s: float) -> dict[str, Any]:
    given = [(place, quick, wait_s) for place in places]
    answers = ask(measure, given, wait_s + MEASURE_LIMIT_S)
    facts: dict[str, Any] = {"world_size": places[0].world_size, "rows": [], "error": None}
    facts["launched"] = places[0].file is None
    broken = _broken(places, answers)
    if broken is not None:
        return facts | {"error": broken}
    return facts | (answers[0].value or {})


def _broken(places: list[Place], answers: list[Answer]) -> str | None:
    """The first account of a rank that says what happened, before those that only waited."""
    said = [(p.rank, a.why) for p, a in zip(places, answers, strict=True) if a.why is not None]
    said.sort(key=lambda pair: "gave no answer" in pair[1] or "closed" in pair[1])
    return f"rank {said[0][0]}: {said[0][1]}" if said else None


def measure(place: Place, quick: bool, wait_s: float) -> dict[str, Any]:
    """In a rank. rows: bytes, repeats, seconds of an all-reduce of float32: the median over
    repeats, on the rank where it is largest. Raises Refused naming ranks that didn't come."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    span = datetime.timedelta(seconds=wait_s)
    store = _store(place, span)
    backend, hosts = _meet(store, place, wait_s)
    device = torch.device("cuda", place.local_rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=span,
    )
    try:
        _sums_right(device, place.world_size)
        sizes, seconds = (QUICK_SIZES, QUICK_SIZE_S) if quick else (SIZES, SIZE_S)
        rows = [_row(size, device, seconds) for size in sizes]
    finally:
        dist.destroy_process_group()
    return {"backend": backend, "hosts": hosts, "rows": rows, "devices": torch.cuda.device_count()}


def _store(place: Place, span: datetime.timedelta) -> Any:
    from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore
    from torch.distributed import DistNetworkError, DistStoreError

    if place.file is not None:
        found = FileStore(place.file, place.world_size)
        found.set_timeout(span)
        return found
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = place.rank == 0 and not agents
    try:
        served = TCPStore(host, port, place.world_size, serves, span, wait_for_workers=False)
    except (DistNetworkError, DistStoreError) as error:
        raise Refused(f"nobody answers at MASTER_ADDR={host} MASTER_PORT={port}") from error
    return PrefixStore("paceline/doctor", served)


def _meet(store: Any, place: Place, wait_s: float) -> tuple[str, int]:
    """(backend, hosts). NCCL where every rank has a device of its own, else gloo; rank 0 says."""
    import torch

    local = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mine = {"host": platform.node(), "device": place.local_world_size <= local}
    store.set(f"here{place.rank}", json.dumps(mine))
    if place.rank == 0:
        store.set("begin", json.dumps(_everybody(store, place.world_size, wait_s)))
    store.wait(["begin"], datetime.timedelta(seconds=wait_s + 1))
    said = json.loads(store.get("begin"))
    if said["missing"]:
        raise Refused(_did_not_come(said["missing"], place.world_size, wait_s))
    return said["backend"], said["hosts"]


def _everybody(store: Any, world_size: int, wait_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + wait_s
    missing = list(range(world_size))
    while missing and time.monotonic() < deadline:
        missing = [rank for rank in missing if not store.check([f"here{rank}"])]
        time.sleep(0.01)
    if missing:
        return {"missing": missing}
    found = [json.loads(store.get(f"here{rank}")) for rank in range(world_size)]
    return {
        "missing": [],
        "backend": "nccl" if all(one["device"] for one in found) else "gloo",
        "hosts": len({one["host"] for one in found}),
    }


def _did_not_come(missing: list[int], world_size: int, wait_s: float) -> str:
    numbers = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
    word = "rank" if len(missing) == 1 else "ranks"
    return f"{word} {numbers} of {world_size} didn't come within {wait_s:.0f} s"


def _sums_right(device: Any, world_size: int) -> None:
    import torch
    import torch.distributed as dist

    ones = torch.ones(1000, device=device)
    dist.all_reduce(ones)
    if not bool((ones == world_size).all()):
        raise Refused(f"an all-reduce of ones over {world_size} ranks gave {float(ones[0])}")


def _row(size: int, device: Any, seconds: float) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    buffer = torch.zeros(size // 4, device=device)  # zeros stay what they are, however often
    _once(buffer)
    first = torch.tensor(_once(buffer), device=device)
    dist.all_reduce(first, dist.ReduceOp.MAX)  # all ranks must repeat it equally often
    fewest, most = REPEATS
    repeats = min(most, max(fewest, int(seconds / float(first))))
    median = torch.tensor(statistics.median(_once(buffer) for _ in range(repeats)), device=device)
    dist.all_reduce(median, dist.ReduceOp.MAX)
    return {"bytes": size, "repeats": repeats, "seconds": float(median)}


def _once(buffer: Any) -> float:
    import torch
    import torch.distributed as dist

    start = time.perf_counter()
    dist.all_reduce(buffer)
    if buffer.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
