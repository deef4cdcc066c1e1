"""torch, its devices, and whether inductor really compiles here: asked of processes of their own,
for torch stays out of the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.controller.doctor.asked import ask

TORCH_LIMIT_S = 60.0
COMPILE_LIMIT_S = 90.0
GIB = 1024**3


def torch_facts() -> dict[str, Any]:
    """What torch says of itself and its devices; `error` where it can't be imported."""
    (answer,) = ask(look_at_torch, [()], TORCH_LIMIT_S)
    return answer.value or {"error": answer.why}


def look_at_torch() -> dict[str, Any]:
    """In a process of its own."""
    import torch
    import torch.distributed as dist

    facts: dict[str, Any] = {"error": None, "version": str(torch.__version__)}
    facts["cuda_build"], facts["hip_build"] = torch.version.cuda, torch.version.hip
    facts["threads"] = torch.get_num_threads()
    facts["gloo"] = dist.is_available() and dist.is_gloo_available()
    facts["devices"], facts["cuda_error"], facts["nccl"] = [], None, None
    if torch.cuda.is_available():
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        facts["devices"] = [{"name": d.name, "gib": d.total_memory / GIB} for d in found]
        if dist.is_nccl_available():
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    elif torch.version.cuda is not None:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            facts["cuda_error"] = str(error).splitlines()[0]
    return facts | _driver()


def _driver() -> dict[str, Any]:
    """The NVIDIA driver and the newest CUDA that it runs; null without one. `gpu_seen`: by the
    kernel, whatever torch makes of it."""
    import pynvml

    facts: dict[str, Any] = {
        "driver": None,
        "driver_cuda": None,
        "gpu_seen": Path("/dev/nvidiactl").exists(),
    }
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return facts
    try:
        newest = pynvml.nvmlSystemGetCudaDriverVersion_v2()  # 12040 is 12.4
        facts["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
        facts["driver_cuda"] = f"{newest // 1000}.{newest % 1000 // 10}"
    finally:
        pynvml.nvmlShutdown()
    return facts


def compiler_facts() -> dict[str, Any]:
    """The C++ compiler that inductor takes ($CXX, else g++, else clang++), and a tiny compile."""
    asked = os.environ.get("CXX")
    names = (asked,) if asked else ("g++", "clang++")
    found = next((path for path in map(shutil.which, names) if path is not None), None)
    facts: dict[str, Any] = {"asked": asked, "path": found, "version": None}
    if found is not None:
        facts["version"] = _version(found)
    with TemporaryDirectory(prefix="paceline-doctor-") as cache:
        (answer,) = ask(compile_something, [(cache,)], COMPILE_LIMIT_S)
    return facts | {"error": answer.why, "compile_s": None} | (answer.value or {})


def compile_something(cache: str) -> dict[str, Any]:
    """In a process of its own, with an empty cache, so that a compiler really runs."""
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
    import torch
    from torch._inductor import config

    config.compile_threads = 1  # more are processes of their own
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def small(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum()

    given = torch.linspace(-1, 1, 1024, device=device)
    start = time.perf_counter()
    compiled = float(torch.compile(small)(given))
    seconds, eager = time.perf_counter() - start, float(small(given))
    if abs(compiled - eager) > 1e-4 * abs(eager):
        raise ValueError(f"compiled it gives {compiled:.6g}, eager {eager:.6g}")
    return {"compile_s": seconds, "device": device}


def _version(path: str) -> str | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(done.stdout.splitlines()), None)
