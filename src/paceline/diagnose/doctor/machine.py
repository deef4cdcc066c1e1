"""What the machine has and how fast it is: cores, limits, ranks that talk, loader, disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.diagnose.doctor.line import MISSING, NOTHING, OK, SLOW, Line, in_bytes, rate, span

BUSY_SHARE = 0.1
"""Of the cores, kept busy by others: a tenth of a step is what makes a rank a straggler
(diagnose/straggler.py), and a rank may lose as much to them."""

DURABLE_SHARE = 0.1
"""Of the rate into the page cache, reached onto the disk: below, a save that waits for the disk
takes ten times as long as its copy in memory, and nearly all of it is waiting."""

SCATTER = 0.1
"""Between two rates of the loader, taken one after the other: less isn't told apart; by the same
measure as BUSY_SHARE, which the cores may have been busy by meanwhile."""


def bus_bytes_per_s(size: int, seconds: float, ranks: int) -> float:
    """Of an all-reduce of `size` bytes: size / seconds x 2 (n - 1) / n, the `busbw` of NVIDIA's
    nccl-tests (doc/PERFORMANCE.md), which can be held to the speed of a link whatever n is."""
    return size / seconds * 2 * (ranks - 1) / ranks


def cores(facts: Mapping[str, Any]) -> list[Line]:
    """Slow: others keep BUSY_SHARE of the cores busy, or a quota gives less time than the cores
    that a job counts (launch.threads_per_rank=auto: cores // nproc)."""
    usable, quota, others = facts["usable"], facts["quota"], facts["others"]
    value = f"{usable} of {facts['machine']} usable, {facts['cpu']}"
    load = f"load average {facts['load']:.2f}"
    if others is None:
        found = [Line("cores", OK, value, f"{load}; n/a: other ranks are starting beside this one")]
    elif others >= BUSY_SHARE * usable:
        why = f"others keep {others:.1f} of them busy ({load}): figures will scatter"
        way_out = "end what else runs here (top), or take a machine, or cores (taskset), of its own"
        found = [Line("cores", SLOW, value, why, way_out)]
    else:
        found = [Line("cores", OK, f"{value}; others keep {others:.1f} busy", load)]
    if quota is not None and quota < usable:
        why = f"a cgroup gives {quota:g} cores' time: that many threads of {usable} can run at once"
        most = max(1, int(quota))
        way_out = f"launch.threads_per_rank={most} for one rank, {most} // nproc for more"
        found.append(Line("cpu quota", SLOW, f"{quota:g} of {usable} cores", why, way_out))
    return found


def limits(facts: Mapping[str, Any]) -> list[Line]:
    """Held to what the loader's measurement takes with as many workers as cores: its batches lie in
    shared memory, each in a file of its own. `in_flight_bytes`, `in_flight_files`."""
    found = [_shared(facts), _open_files(facts)]
    locked = facts["locked_bytes"]["soft"]
    if facts["infiniband"]:
        why = "InfiniBand needs memory that stays in place, as much as is sent"
        value = "unlimited" if locked is None else in_bytes(locked)
        wide = "ulimit -l unlimited; in a container: --ulimit memlock=-1"
        state = OK if locked is None else SLOW
        found.append(Line("locked memory", state, value, why, wide if state == SLOW else ""))
    return found


def _shared(facts: Mapping[str, Any]) -> Line:
    name, free, needed = "shared memory", facts["shared_free_bytes"], facts["in_flight_bytes"]
    if free is None:
        return Line(name, OK, "no /dev/shm here", "n/a: this system shares memory another way")
    value = f"{in_bytes(free)} free of {in_bytes(facts['shared_bytes'])} in /dev/shm"
    workers = facts["workers"]
    asked = f"{workers} loader workers with batches of {in_bytes(facts['batch_bytes'])}"
    if free > needed:
        return Line(name, OK, value, f"{asked} take {in_bytes(needed)}")
    why = f"{asked} take {in_bytes(needed)}; without room they die of a bus error"
    way_out = "docker run --shm-size or --ipc=host; else data.loader.num_workers=0"
    return Line(name, SLOW, value, why, way_out)


def _open_files(facts: Mapping[str, Any]) -> Line:
    limit, needed = facts["open_files"], facts["in_flight_files"]
    soft, hard = limit["soft"], limit["hard"]
    if soft is None or soft > needed:
        return Line("open files", OK, "unlimited" if soft is None else f"{soft} at most")
    why = f"{facts['workers']} loader workers and their batches take {needed}"
    more = "unlimited" if hard is None else str(hard)
    return Line("open files", SLOW, f"{soft} at most", why, f"ulimit -n {more}")


def collectives(facts: Mapping[str, Any]) -> list[Line]:
    """Rates only: how fast ranks should be is in no figure of this run."""
    ranks = facts["world_size"]
    if ranks == 1:
        return [Line("all-reduce", OK, "1 rank", "n/a: it has nobody to talk to (--nproc 2)")]
    if facts["error"] is not None:
        way_out = "ranks need a network interface that all of them reach: "
        way_out += "launch.gloo_interface or launch.nccl_interface (ip -brief address lists them)"
        if "didn't come" in facts["error"] or "nobody answers" in facts["error"]:
            way_out = "start `paceline doctor` in every rank of the launcher, at the same time"
        return [Line("all-reduce", MISSING, f"{ranks} ranks", facts["error"], way_out)]
    hosts, rows = facts["hosts"], facts["rows"]
    rates = [bus_bytes_per_s(row["bytes"], row["seconds"], ranks) for row in rows]
    where = "1 host" if hosts == 1 else f"{hosts} hosts"
    few = f"{span(rows[0]['seconds'])} for {in_bytes(rows[0]['bytes'])}"
    many = f"{rate(rates[-1])} of bus for {in_bytes(rows[-1]['bytes'])}"
    value = f"{ranks} ranks on {where}, {facts['backend']}: {few}, {many}"
    table = [["size", "time", "bus", "repeats"]]
    for row, speed in zip(rows, rates, strict=True):
        texts = [in_bytes(row["bytes"]), span(row["seconds"]), rate(speed), str(row["repeats"])]
        table.append(texts)
    return [Line("all-reduce", OK, value, NOTHING, table=table)]


def loader(facts: Mapping[str, Any]) -> list[Line]:
    """Slow: any number of workers is slower than none, by SCATTER at least, with cores for them."""
    name, rows = "loader", facts["rows"]
    if facts["error"] is not None:
        way_out = "data.loader.num_workers=0 needs no processes and no shared memory"
        return [Line(name, MISSING, "broke", facts["error"], way_out)]
    size = " x ".join(map(str, facts["batch"]))
    best = max(rows, key=lambda row: row["batches_per_s"])
    workers = f"{best['workers']} worker{'' if best['workers'] == 1 else 's'}"
    value = f"{best['batches_per_s']:.1f} batches/s of {size} float32 with {workers}"
    table = [["workers", "batches/s", "data"]]
    for row in rows:
        data = rate(row["batches_per_s"] * facts["batch_bytes"])
        table.append([str(row["workers"]), f"{row['batches_per_s']:.1f}", data])
    if len(rows) == 1:
        return [Line(name, OK, value, "n/a: no room for workers in shared memory", table=table)]
    alone = next(row["batches_per_s"] for row in rows if row["workers"] == 0)
    helped = max(row["batches_per_s"] for row in rows if row["workers"] > 0)
    if helped >= (1 - SCATTER) * alone or facts["cores"] == 1:
        return [Line(name, OK, value, table=table)]
    why = "workers make it slower: handing a batch over costs more than it saves, or cores are busy"
    way_out = "data.loader.num_workers=0 while items cost as little; compare with your own data"
    return [Line(name, SLOW, value, why, way_out, table)]


def disk(facts: Mapping[str, Any]) -> list[Line]:
    """Slow: onto the disk below DURABLE_SHARE of the rate into the page cache."""
    where, kind = facts["directory"], facts["file_system"] or "file system not known"
    if facts["error"] is not None:
        way_out = "give another directory: --dir; hydra.run.dir is where jobs write"
        return [Line("disk", MISSING, f"{where} ({kind})", facts["error"], way_out)]
    free = f"{in_bytes(facts['free_bytes'])} free in {where} ({kind})"
    if facts["written_bytes"] is None:
        why = f"too little to write {in_bytes(facts['needed_bytes'])} for the measurement"
        return [Line("disk", MISSING, free, why, "make room, or give another directory: --dir")]
    size, copy_s = facts["written_bytes"], facts["write_s"]
    cached, durable = size / copy_s, size / (copy_s + facts["fsync_s"])
    value = f"{rate(durable)} onto the disk, {rate(cached)} into its cache"
    found = [Line("disk space", OK, free)]
    if durable < DURABLE_SHARE * cached:
        why = f"a save that waits for the disk takes {cached / durable:.0f} times its copy"
        way_out = "checkpoint=async trains on meanwhile; or checkpoints on a faster disk (--dir)"
        found.append(Line("disk write", SLOW, value, why, way_out))
    else:
        why = f"{in_bytes(size)} written and synced"
        if kind in ("tmpfs", "ramfs"):
            why += "; this is memory, and lost when the machine stops"
        found.append(Line("disk write", OK, value, why))
    small = f"{span(facts['small_fsync_s'])} for 4 KiB"
    return [*found, Line("fsync", OK, small, NOTHING)]
