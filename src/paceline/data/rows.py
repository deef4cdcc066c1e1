"""Tensors in memory as a map-style dataset."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Rows:
    """Sample i is row i of each tensor; all have the same number of rows."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitems__(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, ...]:
        """The rows at `indices` [B], each tensor gathered at once."""
        index = torch.from_numpy(indices)
        return tuple([tensor.index_select(0, index) for tensor in self.tensors])
