"""Your own model, data and loss: which module of the standard library is this line from?

    cd examples/own
    paceline --config-dir conf model=gru data=lines loss=focal run.steps=200
    paceline --config-dir conf model=gru data=lines_loader loss=focal run.steps=200

Nothing here imports paceline: classes are found by the `_target_` of the YAML beside them.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Lines(Dataset[tuple[Tensor, Tensor]]):
    """Source lines as bytes, padded to `width`; the label is the number of the module."""

    def __init__(self, modules: list[str], width: int) -> None:
        stdlib = Path(sysconfig.get_path("stdlib"))
        found = [
            (line, label)
            for label, module in enumerate(modules)
            for line in (stdlib / f"{module}.py").read_bytes().splitlines()
            if len(line) > 8
        ]
        # a fixed shuffle: the held-out end must not be one module only
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
        self.items = [found[i] for i in order]
        self.width = width

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        line, label = self.items[index]
        padded = line[: self.width].ljust(self.width, b"\0")
        return torch.tensor(list(padded)), torch.tensor(label)


class Gru(nn.Module):
    """Bytes [B, T] int64 -> logits [B, classes]."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, lines: Tensor) -> Tensor:
        states, _ = self.gru(self.embed(lines))
        logits: Tensor = self.head(states.mean(dim=1))
        return logits


@dataclass(frozen=True)
class Focal:
    """Focal loss (Lin et al. 2017): (sum, weight), so that it weighs right on any number of ranks.

    A dataclass with `open(context)` gets its YAML type-checked before anything starts.
    """

    gamma: float

    def open(self, context: Any) -> "Focal":
        return self

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        lines, labels = batch
        log_p = F.log_softmax(model(lines), dim=-1).gather(1, labels[:, None]).squeeze(1)
        loss = -((1 - log_p.exp()) ** self.gamma * log_p).sum()
        return loss, torch.tensor(float(len(labels)), device=loss.device)


@dataclass(frozen=True)
class LinesLoader:
    """A torch DataLoader that you have already: it does its own sampling.

    Paceline then can't know which samples a step used: `samples_digest` is null, and the record
    says so.
    """

    modules: list[str]
    width: int
    global_batch_size: int

    def open(self, context: Any) -> "OpenLoader":
        return OpenLoader(self, context.world, context.run)


class OpenLoader:
    unit = "samples"
    sampling = "own"

    def __init__(self, settings: LinesLoader, world: Any, run: Any) -> None:
        dataset = Lines(settings.modules, settings.width)
        self.sampler: DistributedSampler[Any] = DistributedSampler(
            dataset, world.world_size, world.rank, seed=run.seed, drop_last=True
        )
        size = settings.global_batch_size // (world.world_size * run.accumulation_steps)
        self.loader = DataLoader(dataset, size, sampler=self.sampler, drop_last=True)

    def count(self, batch: Any) -> int:
        return len(batch[0])

    def batches(self, first_step: int) -> Iterator[Any]:
        epoch = 0
        while True:  # endless: the number of steps is the config's
            self.sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def held_out(self, batches: int) -> Iterator[Any]:
        return iter(())

    def num_batches(self) -> int | None:
        return None

    def digest(self, micro_batches: int) -> int | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise RuntimeError("this loader can't go on where it stopped; use checkpoint.resume=off")
