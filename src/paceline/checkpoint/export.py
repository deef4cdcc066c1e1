"""A part of a checkpoint as one file, for inference or to look at. The caller has verified it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoint.reading import read_whole
from paceline.checkpoint.shelf import sync_directory
from paceline.checkpoint.writer import save_hashed
from paceline.types import CheckpointError


def export(path: Path, what: str, file: Path) -> dict[str, Any]:
    """Write the part `what` of the checkpoint at `path`; the file appears whole or not at all.

    `.safetensors`: name -> tensor, on the host, in the dtype that was saved. `.pt`: the part as it
    stands in the checkpoint, for torch.load(weights_only=True). Returns {tensors, elements, bytes}.
    Raises CheckpointError when the part isn't there, or can't be held or written by that format.
    """
    tree = read_whole(path, [what])
    if what not in tree:
        raise CheckpointError(f"{path} holds no {what}")
    part = _own(tree[what])
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if file.suffix == ".pt":
            save_hashed(part, temporary)
        else:
            _write_safetensors(part, temporary, path)
        temporary.replace(file)
    except OSError as error:
        raise CheckpointError(
            f"{file} was not written ({error.strerror or error}); free space there, or give "
            "another FILE"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(file.parent)
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(part) if isinstance(leaf, Tensor)]
    elements = sum(tensor.numel() for tensor in tensors)
    return {"tensors": len(tensors), "elements": elements, "bytes": file.stat().st_size}


def _own(part: Any) -> Any:
    """Every tensor with storage of its own: tied weights become two, a view leaves the rest."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()
        alone = storage.data_ptr() not in seen and storage.nbytes() == value.nbytes
        seen.add(storage.data_ptr())
        kept = value if alone and value.is_contiguous() else value.clone()
        return kept.contiguous()

    return torch.utils._pytree.tree_map(own, part)


def _write_safetensors(part: dict[str, Any], file: Path, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    others = [name for name, value in part.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(
            f"{path}: {', '.join(map(str, others[:3]))} is no tensor, and safetensors holds only "
            "tensors; give a FILE that ends in .pt"
        )
    try:
        save_file(part, file, metadata={"format": "pt", "checkpoint": path.name})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    except KeyError as error:
        raise CheckpointError(
            f"{path}: safetensors has no dtype {error}; give a FILE that ends in .pt"
        ) from error
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
