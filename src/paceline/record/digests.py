"""Digests of a training's state, leaf by leaf: what was restored is held to the files by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xxhash


def digests(tree: Any, where: str = "") -> dict[str, str]:
    """Dotted path -> what stands there: dtype, shape and xxh3 of a tensor's bytes, else the xxh3 of
    the plain value. A shard is gathered whole, one at a time: then a collective. Empty dicts leave
    no trace, and a tuple is a list."""
    if isinstance(tree, Mapping):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple) and _holds_tensors(tree):
        items = [(str(number), value) for number, value in enumerate(tree)]
    else:
        return {where: _tensor(tree) if _is_tensor(tree) else _plain(tree)}
    return {
        path: digest
        for key, value in items
        for path, digest in digests(value, f"{where}.{key}" if where else key).items()
    }


def _tensor(tensor: Any) -> str:
    import torch

    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    raw = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} {xxhash.xxh3_64_hexdigest(raw)}"


def _plain(value: Any) -> str:
    return xxhash.xxh3_64_hexdigest(repr(_lists(value)).encode())


def _lists(value: Any) -> Any:
    return [_lists(v) for v in value] if isinstance(value, list | tuple) else value


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_tensors(v) for v in value)
    return _is_tensor(value) or isinstance(value, Mapping)
