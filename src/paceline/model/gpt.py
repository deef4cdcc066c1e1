"""A decoder-only transformer (GPT-2 shape): pre-norm, learned positions, tied output embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.types import Context, at_least


@dataclass(frozen=True)
class Gpt:
    vocab_size: int
    context_length: int
    layers: int
    heads: int
    width: int

    def __post_init__(self) -> None:
        at_least(1, vocab_size=self.vocab_size, context_length=self.context_length)
        at_least(1, layers=self.layers, heads=self.heads, width=self.width)
        if self.width % self.heads:
            raise ValueError(
                f"width={self.width}: not divisible by heads={self.heads}; "
                f"give a multiple of {self.heads}"
            )

    def open(self, context: Context) -> GptModel:
        return GptModel(self)


class GptModel(nn.Module):
    """Tokens [B, T] int64 -> logits [B, T, V], T at most `context_length`."""

    def __init__(self, settings: Gpt) -> None:
        super().__init__()
        s = settings
        self.context_length = s.context_length
        self.tokens = nn.Embedding(s.vocab_size, s.width)
        self.positions = nn.Parameter(torch.empty(s.context_length, s.width))
        self.layers = nn.ModuleList(Block(s.width, s.heads) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.width, bias=False)
        self._initialise()
        # counted here: later the parameters may be shards
        weights = sum(p.numel() for p in self.parameters()) - self.positions.numel()
        self._flops_per_token = 6.0 * weights + 12.0 * s.layers * s.width * s.context_length

    def forward(self, inputs: Tensor) -> Tensor:
        length = inputs.shape[1]
        if length > self.context_length:
            raise ValueError(
                f"a sequence of {length} tokens is longer than model.context_length="
                f"{self.context_length}: raise it, or shorten the sequences of the data"
            )
        x = self.tokens(inputs) + self.positions[:length]
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.tokens.weight)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def flops_per_unit(self) -> float:
        """Model FLOPs a token, forward and backward: 6 N + 12 layers width T (PaLM, appendix B).

        N is every parameter but the positions, as in nanoGPT: the tied embedding counts, because
        it is the output head. T = context_length; attention counts in full, as if not causal.
        """
        return self._flops_per_token

    def _initialise(self) -> None:
        # GPT-2: the residual stream sums 2 * layers branches, so each starts that much smaller
        residual_std = 0.02 / math.sqrt(2 * len(self.layers))
        nn.init.normal_(self.positions, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                is_residual = name.endswith(".out")
                nn.init.normal_(module.weight, std=residual_std if is_residual else 0.02)


class Block(nn.Module):
    """x [B, T, W] -> [B, T, W]: attention, then the feed-forward, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.feed_forward_norm = nn.LayerNorm(width, bias=False)
        self.feed_forward = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Attention(nn.Module):
    """Causal self-attention, x [B, T, W] -> [B, T, W]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()  # each [B, heads, T, W / heads]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class FeedForward(nn.Module):
    """GELU between two linear layers, x [B, T, W] -> [B, T, W], 4 W inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(F.gelu(self.up(x)))
        return out
