"""comm_hook=bf16: gradients travel in bfloat16: half the bytes of float32, and its whole range."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from paceline.comm_hook.compressed import Compressed
from paceline.types import Context

LOSSY_RTOL = 1.6e-2
"""As fp16's, with 8 bits (2**-8 a rounding). Measured: 2.3e-3 on two ranks, 3e-3 on four."""


@dataclass(frozen=True)
class Bf16:
    def open(self, context: Context) -> Compressed:
        return Compressed(bf16_compress_hook, LOSSY_RTOL, overflow=None)
