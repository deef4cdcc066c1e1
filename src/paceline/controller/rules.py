"""Rules between groups: what can't run together, one sentence each, naming keys and way out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline.config import shown

Config = Mapping[str, Any]

WORLD = ("launch.nproc", "strategy", "run.device")
"""What the number of ranks comes from."""

FIRST_TF32_DEVICE = (8, 0)
"""The compute capability of Ampere."""


def world_size(config: Config, choices: Config) -> int:
    """Ranks of the job: launch.nproc, where auto means 1 for strategy=single, else one a device,
    or 2 on a CPU; under an outer torchrun what that started."""
    nproc = config["launch"]["nproc"]
    if nproc != "auto":
        return int(nproc)
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if choices.get("strategy") == "single":
        return 1
    return _cuda_devices() if _on_cuda(config["run"]) else 2


def broken_rules(
    config: Config, choices: Config, world: int | None = None, wrong: Iterable[str] = ()
) -> list[str]:
    """Every rule that a config breaks. `wrong`: keys already known to be wrong; a rule that reads
    one of them can't be judged. `world`: the number of ranks, if known."""
    wrong = tuple(wrong)
    if world is None and not _touches(WORLD, wrong):
        world = world_size(config, choices)
    said = (
        rule(config, choices, world or 0)
        for reads, rule in RULES
        if not _touches(reads, wrong) and (world is not None or WORLD[0] not in reads)
    )
    return [sentence for sentence in said if sentence]


def _touches(reads: Iterable[str], wrong: Iterable[str]) -> bool:
    """Is one of the keys that are read wrong, or inside a wrong one, or around one?"""
    return any(
        key == bad or key.startswith(f"{bad}.") or bad.startswith(f"{key}.")
        for key in reads
        for bad in wrong
    )


def _single(config: Config, choices: Config, world: int) -> str | None:
    if choices.get("strategy") == "single" and world > 1:
        return (
            f"strategy=single: it runs one process, launch.nproc={config['launch']['nproc']} asks "
            f"for {world}; use strategy=ddp, or launch.nproc=1"
        )
    return None


def _adopted(config: Config, choices: Config, world: int) -> str | None:
    outer = os.environ.get("WORLD_SIZE")
    if outer and int(outer) != world:
        return (
            f"launch.nproc={config['launch']['nproc']}: the launcher around paceline started "
            f"WORLD_SIZE={outer} processes; leave launch.nproc=auto, or start paceline without it"
        )
    return None


def _batch(config: Config, choices: Config, world: int) -> str | None:
    batch, run = config["data"].get("global_batch_size"), config["run"]
    if not isinstance(batch, int):
        return None
    parts = world * run["accumulation_steps"]
    if batch <= 0 or batch % parts:
        near = max(parts, round(batch / parts) * parts)
        return (
            f"data.global_batch_size={batch}: {world} ranks x run.accumulation_steps="
            f"{run['accumulation_steps']} can't share it equally; use a multiple of {parts}, as "
            f"data.global_batch_size={near}"
        )
    return None


def _devices(config: Config, choices: Config, world: int) -> str | None:
    run = config["run"]
    if run["device"] == "cuda" and not _on_cuda(run):
        return "run.device=cuda: torch sees no CUDA device; use run.device=cpu or auto"
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if _on_cuda(run) and local > _cuda_devices():
        return (
            f"launch.nproc={config['launch']['nproc']}: {local} ranks on {_cuda_devices()} "
            "CUDA devices; lower launch.nproc, or use run.device=cpu"
        )
    return None


def _measured(config: Config, choices: Config, world: int) -> str | None:
    warmup, steps = config["measure"].get("warmup_steps"), config["run"]["steps"]
    if isinstance(warmup, int) and warmup >= steps:
        return (
            f"measure.warmup_steps={warmup}: this leaves nothing to measure in run.steps={steps}; "
            "raise run.steps or lower measure.warmup_steps"
        )
    return None


def _warmed_up(config: Config, choices: Config, world: int) -> str | None:
    warmup, steps = config["scheduler"].get("warmup_steps"), config["run"]["steps"]
    if isinstance(warmup, int) and warmup > steps:
        return (
            f"scheduler.warmup_steps={warmup}: longer than the training, run.steps={steps}; "
            "raise run.steps or lower scheduler.warmup_steps"
        )
    return None


def _profiler(config: Config, choices: Config, world: int) -> str | None:
    profiler, steps = config["profiler"], config["run"]["steps"]
    cycle = [profiler.get(key) for key in ("wait", "warmup", "active", "repeat")]
    if not all(isinstance(n, int) for n in cycle):
        return None
    wait, warmup, active, repeat = cycle
    needed = (wait + warmup + active) * repeat
    if needed > steps:
        return (
            f"profiler.wait={wait}: (wait + warmup={warmup} + active={active}) x repeat={repeat} "
            f"needs {needed} steps, run.steps={steps} has fewer; lower profiler.wait or raise "
            "run.steps"
        )
    return None


def _profiled(config: Config, choices: Config, world: int) -> str | None:
    ranks = config["profiler"].get("ranks", [])
    if [r for r in ranks if not 0 <= r < world]:
        return (
            f"profiler.ranks={shown(ranks)}: the job has ranks 0 to {world - 1}; give some of those"
        )
    return None


def _context_length(config: Config, choices: Config, world: int) -> str | None:
    length = config["data"].get("sequence_length")
    context = config["model"].get("context_length")
    if isinstance(length, int) and isinstance(context, int) and length > context:
        return (
            f"data.sequence_length={length}: longer than model.context_length={context}; "
            "raise the second or lower the first"
        )
    return None


def _compiler(config: Config, choices: Config, world: int) -> str | None:
    if config["compile"].get("backend") != "inductor" or _on_cuda(config["run"]):
        return None  # kernels for the GPU need no host compiler of ours
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(wanted):
        return None
    return (
        f"compile={choices.get('compile')}: it needs a C++ compiler for CPU kernels, {wanted} "
        "is not on PATH; install one (apt install g++) or set CXX, or use compile=off"
    )


def _cuda_graphs(config: Config, choices: Config, world: int) -> str | None:
    compile_ = config["compile"]
    graphs = compile_.get("backend") == "cudagraphs" or compile_.get("mode") == "reduce-overhead"
    if not graphs or _on_cuda(config["run"]):
        return None
    return (
        f"compile={choices.get('compile')}: CUDA graphs need a CUDA device, there would be none; "
        "use compile=inductor"
    )


def _tf32(config: Config, choices: Config, world: int) -> str | None:
    if config["precision"].get("float32_matmul") != "tf32":
        return None
    if _on_cuda(config["run"]) and _newest_cuda_device() >= FIRST_TF32_DEVICE:
        return None
    asked = "precision" if choices.get("precision") == "tf32" else "precision.float32_matmul"
    return f"{asked}=tf32: TF32 needs an Ampere or newer CUDA device; use precision=fp32 or bf16"


def _compiled_step(config: Config, choices: Config, world: int) -> str | None:
    optimizer = config["optimizer"]
    if not config["compile"].get("optimizer_step"):
        return None
    if optimizer.get("fused"):
        return (
            "compile.optimizer_step=true: optimizer.fused=true is one kernel already, which no "
            "compiler enters; use one of the two"
        )
    if optimizer.get("foreach") and not optimizer.get("capturable"):
        return (
            "compile.optimizer_step=true: a compiled step has its learning rate in a tensor, which "
            "optimizer.foreach=true doesn't take; use optimizer.foreach=null"
        )
    return None


def _on_cuda(run: Config) -> bool:
    if run["device"] == "cpu":
        return False
    import torch

    return torch.cuda.is_available()


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


def _newest_cuda_device() -> tuple[int, int]:
    """The highest compute capability on this host, from the driver: asked by torch, it would take
    device memory for as long as the controller lives. Without an answer, nothing is refused."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return FIRST_TF32_DEVICE
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        newest: tuple[int, int] = max(map(pynvml.nvmlDeviceGetCudaComputeCapability, handles))
        return newest
    except (pynvml.NVMLError, ValueError):
        return FIRST_TF32_DEVICE
    finally:
        pynvml.nvmlShutdown()


RULES: tuple[tuple[tuple[str, ...], Callable[[Config, Config, int], str | None]], ...] = (
    ((*WORLD,), _single),
    ((*WORLD,), _adopted),
    ((*WORLD, "data.global_batch_size", "run.accumulation_steps"), _batch),
    ((*WORLD,), _devices),
    (("measure.warmup_steps", "run.steps"), _measured),
    (("scheduler.warmup_steps", "run.steps"), _warmed_up),
    (
        ("profiler.wait", "profiler.warmup", "profiler.active", "profiler.repeat", "run.steps"),
        _profiler,
    ),
    ((*WORLD, "profiler.ranks"), _profiled),
    (("data.sequence_length", "model.context_length"), _context_length),
    (("compile", "run.device"), _compiler),
    (("compile", "run.device"), _cuda_graphs),
    (("compile", "optimizer"), _compiled_step),
    (("precision", "run.device"), _tf32),
)
"""(the keys that a rule reads, the rule)"""
