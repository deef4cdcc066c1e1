"""The two-node job as a plain script, and what it waits for its gradients by a stopwatch alone.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python benchmarks/two_nodes_plain.py ROUNDS

The model, batch and bucket size of `two_nodes.py`, torch's own DDP, no line of paceline's loop.
Turns of steps that synchronise and of steps under no_sync, one after the other: what the first take
more is communication that nothing hides. Rank 0 prints JSON: mean seconds of a step, a turn each.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from paceline.model.gpt import Gpt, GptModel

VOCABULARY, LENGTH, LAYERS, HEADS, WIDTH = 512, 64, 4, 4, 192
LOCAL_BATCH, BUCKET_MB = 2, 4
STEPS, LEFT_OUT = 8, 2
"""Of a turn, and how many of them at its start aren't counted."""


def main() -> None:
    rounds = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = GptModel(Gpt(VOCABULARY, LENGTH, LAYERS, HEADS, WIDTH))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4)
    tokens = torch.randint(0, VOCABULARY, (LOCAL_BATCH, LENGTH + 1))

    def turn(sync: bool) -> float:
        """Mean seconds of a step, the slower rank's."""
        start = 0.0
        for step in range(STEPS):
            if step == LEFT_OUT:
                dist.barrier()
                start = time.perf_counter()
            optimizer.zero_grad()
            wrapped.require_backward_grad_sync = sync
            logits = wrapped(tokens[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
        spent = torch.tensor([(time.perf_counter() - start) / (STEPS - LEFT_OUT)])
        dist.all_reduce(spent, op=dist.ReduceOp.MAX)
        return float(spent)

    turn(True)
    found = {"synced_s": [], "local_s": []}
    for _ in range(rounds):
        found["synced_s"].append(turn(True))
        found["local_s"].append(turn(False))
    if os.environ["RANK"] == "0":
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
