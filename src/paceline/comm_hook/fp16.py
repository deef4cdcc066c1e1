"""comm_hook=fp16: gradients travel in float16, which halves the bytes of float32."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from paceline.comm_hook.compressed import Compressed
from paceline.types import Context

LOSSY_RTOL = 2e-3
"""Two roundings to 11 bits (2**-11 each), the sum over ranks another few. Measured: 5e-4 on two
ranks, 8e-4 on four. Gradients below 6e-5 have fewer bits, those below 3e-8 become 0."""


@dataclass(frozen=True)
class Fp16:
    def open(self, context: Context) -> Compressed:
        return Compressed(
            fp16_compress_hook,
            LOSSY_RTOL,
            "comm_hook=fp16: a gradient above 65504, float16's largest, came back infinite; use "
            "comm_hook=bf16 or none",
        )
