"""strategy=hsdp: sharded within a group of ranks, replicated over the groups (FSDP2, 2-D mesh).

Gathers stay inside a group, as a rule the ranks of a node; only averaged shards cross groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from paceline.strategy.fsdp import Fsdp, Sharded
from paceline.types import Context, World, at_least


@dataclass(frozen=True)
class Hsdp(Fsdp):
    """`shard_ranks`: ranks of a group; auto: those of a node, on a single node half of them."""

    shard_ranks: int | Literal["auto"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard_ranks != "auto":
            at_least(1, shard_ranks=self.shard_ranks)

    def open(self, context: Context) -> Sharded:
        return Sharded(self, self.mesh)

    def mesh(self, world: World) -> DeviceMesh:
        """[groups, ranks of a group]. Raises ValueError when groups would be of unequal size."""
        size = world.world_size
        shard = world.shard_group(self.shard_ranks)
        if size % shard:
            raise ValueError(
                f"strategy.shard_ranks={shard}: {size} ranks can't be shared into equal groups; "
                f"give a divisor of {size}"
            )
        return init_device_mesh(
            world.device.type, (size // shard, shard), mesh_dim_names=("replicate", "shard")
        )
