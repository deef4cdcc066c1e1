"""The tiny job of `job_overhead.py` as a plain script: `torchrun --standalone plain_job.py STEPS`.

Prints the seconds of its step loop: all else of its wall time is what the job costs besides.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES, FEATURES, CLASSES, GLOBAL_BATCH = 8192, 64, 10, 32


def main() -> None:
    steps = int(sys.argv[1])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if world_size > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES)
    targets = (inputs @ torch.randn(FEATURES, CLASSES)).argmax(1)
    model: nn.Module = nn.Sequential(
        nn.Linear(FEATURES, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, CLASSES)
    )
    if world_size > 1:
        model = DistributedDataParallel(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    start = time.perf_counter()
    for step in range(steps):
        at = step * GLOBAL_BATCH % SAMPLES
        if at == 0:
            order = torch.randperm(SAMPLES)
        mine = order[at : at + GLOBAL_BATCH].chunk(world_size)[rank]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[mine]), targets[mine])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    seconds = time.perf_counter() - start

    if rank == 0:
        print(f"loss {float(loss.detach()):.4f}  loop_s {seconds:.6f}", flush=True)
    if world_size > 1:
        dist.destroy_process_group()
        os._exit(0)  # torch 2.13: gloo ranks often abort while the interpreter ends


if __name__ == "__main__":
    main()
