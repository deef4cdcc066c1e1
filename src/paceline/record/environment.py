"""Where a result was made: versions, machine, threads, code. Two records are compared by it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.record.source import snapshot

KEPT = ("CUDA_", "NCCL_", "GLOO_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH_", "MALLOC_")
"""Prefixes of environment variables that change how fast training runs."""

PROC, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

LEFT_OUT = ("TORCHELASTIC_", "TORCH_NCCL_ASYNC_ERROR_HANDLING")


def scheduled() -> dict[str, Any]:
    """`scheduler` of a record's job section, as SLURM says it here; empty outside of its jobs."""
    number = os.environ.get("SLURM_JOB_ID")
    if number is None:
        return {}
    return {
        "scheduler": {
            "kind": "slurm",
            "job_id": number,
            "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
            "nodes": os.environ.get("SLURM_JOB_NODELIST"),
            "partition": os.environ.get("SLURM_JOB_PARTITION"),
        }
    }


def environment() -> dict[str, Any]:
    """The `environment` section of a record."""
    import torch

    on_gpu = torch.cuda.is_available()
    code = snapshot(Path.cwd())
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": f"{cpu_name()} x{os.cpu_count()}",
        "cores": cores(),
        "gpu": f"{torch.cuda.get_device_name()} x{torch.cuda.device_count()}" if on_gpu else None,
        "host": platform.node(),
        "git_commit": code["commit"],
        "dirty": None if code["commit"] is None else code["dirty"] is not None,
        "env": {
            k: v
            for k, v in sorted(os.environ.items())
            if k.startswith(KEPT) and not k.startswith(LEFT_OUT)
        },
    }


def cgroups(controller: str, proc: Path = PROC, root: Path = CGROUPS) -> Iterator[Path]:
    """The folders of the cgroups that bound this process in `controller` (cpu, memory), from its
    own up to the root; of both versions. None where there are none."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):  # v2: one hierarchy for all
            folder = root / controllers / path.lstrip("/")
            for one in (folder, *folder.parents):
                if one.is_relative_to(root / controllers):
                    yield one


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
