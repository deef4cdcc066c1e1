"""What this machine says without a process being asked: versions, cores, limits, SLURM."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from paceline.record.environment import CGROUPS, PROC, cgroups, cores, cpu_name

LOOK_S = 0.5
SINFO_S = 5.0
SHARED = Path("/dev/shm")
INFINIBAND = Path("/sys/class/infiniband")


def packages_facts() -> dict[str, Any]:
    """The installed paceline's own requirements, extras left out, and what is installed of them."""
    try:
        about, wanted = metadata.metadata("paceline"), metadata.requires("paceline") or []
    except metadata.PackageNotFoundError:
        return {"python": platform.python_version(), "requires_python": None, "packages": []}
    needs = about["Requires-Python"]
    asked = [Requirement(text) for text in wanted]
    found = [_package(one) for one in asked if one.marker is None or one.marker.evaluate()]
    version = platform.python_version()
    fits = SpecifierSet(needs).contains(version, prereleases=True)
    return {"python": version, "requires_python": needs, "python_fits": fits, "packages": found}


def _package(asked: Requirement) -> dict[str, Any]:
    try:
        version = metadata.version(asked.name)
    except metadata.PackageNotFoundError:
        return {"name": asked.name, "needs": str(asked.specifier), "version": None, "fits": False}
    fits = asked.specifier.contains(version, prereleases=True)
    return {"name": asked.name, "needs": str(asked.specifier), "version": version, "fits": fits}


def cores_facts(alone: bool) -> dict[str, Any]:
    """`usable`: those that a job here counts. `others`: how many of them others keep busy now, over
    half a second; null where the ranks beside this one are `others`."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    used = None
    if alone:
        each = psutil.cpu_percent(interval=LOOK_S, percpu=True)
        used = sum(each[n] for n in mine if n < len(each)) if mine else sum(each)
    return {
        "cpu": cpu_name(),
        "machine": os.cpu_count(),
        "usable": cores(),
        "quota": min(quotas(), default=None),
        "others": None if used is None else used / 100,
        "load": os.getloadavg()[0],
    }


def quotas(proc: Path = PROC, root: Path = CGROUPS) -> Iterator[float]:
    """Cores' worth of time that each cgroup of this process gets, from its own up to the root."""
    for cgroup in cgroups("cpu", proc, root):
        yield from _quota(cgroup)


def _quota(cgroup: Path) -> Iterator[float]:
    try:
        if (cgroup / "cpu.max").exists():
            most, period = (cgroup / "cpu.max").read_text().split()
        else:
            most = (cgroup / "cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu.cfs_period_us").read_text()
        if float(most) > 0:
            yield float(most) / float(period)
    except (OSError, ValueError):  # no such file here, or its limit is `max`
        return


def limits_facts() -> dict[str, Any]:
    """Shared memory, through which loader workers hand over batches; open files; pinned memory,
    only where InfiniBand needs it. Infinite limits are null."""
    try:
        shared: Any = shutil.disk_usage(SHARED)
    except OSError:
        shared = None
    return {
        "shared_bytes": None if shared is None else shared.total,
        "shared_free_bytes": None if shared is None else shared.free,
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "locked_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "infiniband": INFINIBAND.is_dir() and any(INFINIBAND.iterdir()),
    }


def _limit(kind: int) -> dict[str, int | None]:
    pair = (None if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(kind))
    return dict(zip(("soft", "hard"), pair, strict=True))


def slurm_facts() -> dict[str, Any]:
    """`nodes`: what sinfo counts by state; `error`: why it gave no answer."""
    facts: dict[str, Any] = {name: shutil.which(name) for name in ("sbatch", "srun", "sinfo")}
    facts |= {"job": os.environ.get("SLURM_JOB_ID"), "nodes": {}, "error": None}
    if facts["sinfo"] is None:
        return facts
    try:
        done = subprocess.run(
            [facts["sinfo"], "--noheader", "--format=%D %T"],
            capture_output=True,
            text=True,
            timeout=SINFO_S,
        )
    except subprocess.TimeoutExpired:
        return facts | {"error": f"sinfo gave no answer within {SINFO_S:.0f} s"}
    except OSError as error:
        return facts | {"error": f"sinfo can't be run: {error.strerror}"}
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}")
        return facts | {"error": said}
    for line in done.stdout.splitlines():
        number, state = line.split(maxsplit=1)
        facts["nodes"][state] = facts["nodes"].get(state, 0) + int(number)
    return facts
