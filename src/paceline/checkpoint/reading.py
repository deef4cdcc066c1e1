"""Reading a committed checkpoint: verified by all ranks together, into the shards of this job.

A checkpoint is as good as its manifest says or isn't used. Every rank reads a share of the bytes to
verify them, and then what its own shards need.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from paceline.checkpoint import shelf
from paceline.checkpoint.shelf import Manifest, read_manifest
from paceline.checkpoint.together import gather, together, unwrap
from paceline.types import CheckpointError, TrainState, World

WHOLE = "state.pt"
"""The only file of the torch format."""


@dataclass(frozen=True)
class Found:
    """A checkpoint that is good, and those newer ones that aren't: path -> reason."""

    path: Path
    manifest: Manifest
    bad: dict[Path, str]


def newest_good(paths: list[Path], world: World, contents: bool) -> Found | None:
    """The last of `paths` that is whole: a collective, the same on all ranks. `contents`: hold the
    bytes of all files to the manifest. None where there is no path; raises CheckpointError where
    there are some and none is good."""
    _same_everywhere(paths, world)
    bad: dict[Path, str] = {}
    for path in reversed(paths):
        looked = together(world, None, partial(_look, path, world, contents))
        manifest, said = looked[0][0], [one for _, wrong in looked for one in wrong]
        if manifest is not None and not said:
            return Found(path, manifest, bad)
        bad[path] = "; ".join(dict.fromkeys(said))
    if bad:
        listed = "\n".join(bad.values())
        raise CheckpointError(
            f"no checkpoint in {paths[0].parent} is good:\n{listed}\n"
            "checkpoint.resume=off starts from step 0"
        )
    return None


def read_into(state: TrainState, found: Found, world: World) -> dict[str, Any]:
    """The tree that was saved: with this job's own tensors of the model, filled, where the format
    allows it, and with shards for sharded parameters. A collective."""
    if found.manifest.format == "torch":
        return read_whole(found.path)
    reader = FileSystemReader(found.path)
    targets = _targets(_metadata(reader), state, world)
    _fill(targets, reader, world.alone)
    return targets


def read_whole(path: Path, parts: Collection[str] | None = None) -> dict[str, Any]:
    """Either format in one process, whole, on the host: no job, no group. `parts`: of the tree;
    None: all. Raises CheckpointError when it can't be read; the caller has verified it."""
    file = path / WHOLE
    if read_manifest(path).format == "torch":
        try:
            saved: dict[str, Any] = torch.load(
                file, map_location="cpu", mmap=True, weights_only=True
            )
        except Exception as error:
            raise CheckpointError(f"{file} can't be read ({error})") from error
        return {name: part for name, part in saved.items() if parts is None or name in parts}
    reader = FileSystemReader(path)
    tree = _empty(
        _metadata(reader), lambda path, meta: torch.empty(meta.size, dtype=_dtype(meta)), parts
    )
    _fill(tree, reader, alone=True)
    return tree


class PlainPlanner(DefaultLoadPlanner):
    """Values that are no tensors: plain ones, or the load fails."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        place = self.mappings[read_item.dest_index.fqn]
        _put(self.original_state_dict, place, torch.load(value, weights_only=True))


def quiet() -> None:
    """One process without a group is what was meant, whatever DCP thinks of it."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or un")


def _look(path: Path, world: World, contents: bool) -> tuple[Manifest | None, list[str]]:
    """The manifest, if it is good, and what is wrong with this rank's share of the files."""
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return None, [str(error)]
    mine = sorted(manifest.files)[world.rank :: world.world_size]
    return manifest, shelf.problems(path, manifest, mine, contents)


def _metadata(reader: FileSystemReader) -> Metadata:
    try:
        return reader.read_metadata()
    except Exception as error:
        raise CheckpointError(f"{reader.path}/.metadata can't be read ({error})") from error


def _fill(tree: dict[str, Any], reader: FileSystemReader, alone: bool) -> None:
    quiet()
    try:
        load(tree, storage_reader=reader, planner=PlainPlanner(), no_dist=alone)
    except CheckpointException as error:
        unwrap(error)


def _same_everywhere(paths: list[Path], world: World) -> None:
    """A node that doesn't see the checkpoint would start afresh while the others go on."""
    seen = gather(str(paths[-1]) if paths else "none", world)
    if len(set(seen)) > 1:
        listed = ", ".join(f"rank {rank}: {name}" for rank, name in enumerate(seen))
        raise CheckpointError(
            f"the ranks see different newest checkpoints ({listed}); put the job's directory on a "
            "file system that all nodes share"
        )


def _targets(metadata: Metadata, state: TrainState, world: World) -> dict[str, Any]:
    """What DCP reads into: the model's own tensors; room for state of the optimizer, sharded as its
    parameter is; of what belongs to ranks, this one's, where as many ranks saved."""
    model = state.model.state_dict()
    parameters = dict(state.model.named_parameters())

    def room(path: tuple[str, ...], meta: TensorStorageMetadata) -> Tensor:
        if path[0] == "model" and path[1] in model and model[path[1]].shape == meta.size:
            mine: Tensor = model[path[1]]
            return mine
        like = parameters.get(path[2]) if path[:2] == ("optimizer", "state") else None
        if isinstance(like, DTensor) and like.shape == meta.size:
            return torch.empty_like(like, dtype=_dtype(meta))
        return torch.empty(meta.size, dtype=_dtype(meta))

    tree = _empty(metadata, room)
    ranks = tree["ranks"]
    own = ranks.get(str(world.rank)) if len(ranks) == world.world_size else None
    tree["ranks"] = {} if own is None else {str(world.rank): own}
    return tree


def _empty(metadata: Metadata, room: Any, parts: Collection[str] | None = None) -> dict[str, Any]:
    """The tree that was saved, with room for each tensor and nothing for each value."""
    tree: dict[str, Any] = {}
    for key, meta in metadata.state_dict_metadata.items():
        path = metadata.planner_data[key]
        if parts is not None and path[0] not in parts:
            continue
        _put(tree, path, room(path, meta) if isinstance(meta, TensorStorageMetadata) else None)
    return tree


def _put(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def _dtype(meta: TensorStorageMetadata) -> torch.dtype:
    return meta.properties.dtype
