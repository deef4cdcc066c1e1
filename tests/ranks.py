"""A function on several ranks of a gloo group, each a fresh process, bounded in time."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from paceline.types import World


def run(function: Callable[..., Any], world_size: int, *given: Any, timeout_s: float = 90) -> Any:
    """What `function(world, *given)` returned on each rank, in rank order; a rank's error here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    answers: Any = context.Queue()
    ranks = [
        context.Process(
            target=_rank, args=(answers, port, rank, world_size, function, given), daemon=True
        )
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    try:
        found = dict(pickle.loads(answers.get(timeout=timeout_s)) for _ in ranks)
    finally:
        for rank in ranks:
            rank.join(10)
            rank.kill()
    errors = [value for value in found.values() if isinstance(value, _Broken)]
    assert not errors, errors[0].text
    return [found[rank] for rank in range(world_size)]


class _Broken:
    def __init__(self, text: str) -> None:
        self.text = text


def _rank(
    answers: Any, port: int, rank: int, size: int, function: Callable[..., Any], given: Any
) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo")
        world = World(rank, rank, 0, size, torch.device("cpu"))
        # as bytes: a tensor in a queue is shared memory, which ends with this process
        answers.put(pickle.dumps((rank, function(world, *given))))
        dist.barrier()
    except BaseException:
        answers.put(pickle.dumps((rank, _Broken(traceback.format_exc()))))
