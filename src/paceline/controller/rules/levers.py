"""Rules of the levers: what compiler, precision and optimizer need from host and each other."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from paceline.config import is_settings, locate
from paceline.config.hints import hints_of
from paceline.controller.rules.device import FIRST_TF32_DEVICE, newest_cuda_device, on_cuda
from paceline.controller.rules.rule import DEVICE, Config, Rules


def _compiler(config: Config, choices: Config, world: int) -> str | None:
    if config["compile"].get("backend") != "inductor" or on_cuda(config):
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
    if not graphs or on_cuda(config):
        return None
    return (
        f"compile={choices.get('compile')}: CUDA graphs need a CUDA device, there would be none; "
        "use compile=inductor"
    )


def _tf32(config: Config, choices: Config, world: int) -> str | None:
    if config["precision"].get("float32_matmul") != "tf32":
        return None
    if on_cuda(config) and newest_cuda_device(config) >= FIRST_TF32_DEVICE:
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


def _pinned(config: Config, choices: Config, world: int) -> str | None:
    if config["checkpoint"].get("stager") != "pinned" or on_cuda(config):
        return None
    return (
        "checkpoint.stager=pinned: pinned memory is for copies from a CUDA device, there would be "
        "none; use checkpoint.stager=thread"
    )


def _blocks(config: Config, choices: Config, world: int) -> str | None:
    """Where the model's class is known before it is made; else the ranks say so."""
    chosen = locate(config["activation_checkpointing"]["_target_"])
    if not getattr(chosen, "wraps_blocks", False):
        return None
    model = _class(locate(config["model"]["_target_"]))
    if model is None or hasattr(model, "blocks"):
        return None
    return (
        f"activation_checkpointing={choices.get('activation_checkpointing')}: {model.__name__} "
        "doesn't define blocks() -> list of modules; define it, or use activation_checkpointing=off"
    )


def _class(target: Any) -> type | None:
    """The class of the model that a target makes: what `open` is annotated to return, or itself."""
    made = hints_of(target.open).get("return") if is_settings(target) else target
    return made if isinstance(made, type) else None


RULES: Rules = (
    (("compile", *DEVICE), _compiler),
    (("compile", *DEVICE), _cuda_graphs),
    (("compile", "optimizer"), _compiled_step),
    (("precision", *DEVICE), _tf32),
    (("checkpoint", *DEVICE), _pinned),
    (("activation_checkpointing", "model"), _blocks),
)
