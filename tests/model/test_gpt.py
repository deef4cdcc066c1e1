"""The transformer: shapes, causality, initial values, FLOPs, and that it learns."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from paceline.model.gpt import Gpt, GptModel

SMALL = Gpt(vocab_size=11, context_length=6, layers=2, heads=2, width=8)


def small(seed: int = 0) -> GptModel:
    torch.manual_seed(seed)
    return SMALL.open(None)


def test_logits_have_a_row_for_every_token_also_of_a_short_sequence() -> None:
    model = small()
    assert model(torch.zeros(3, 6, dtype=torch.int64)).shape == (3, 6, 11)
    assert model(torch.zeros(3, 4, dtype=torch.int64)).shape == (3, 4, 11)


def test_a_later_token_leaves_earlier_logits_as_they_are() -> None:
    model = small()
    inputs = torch.randint(11, (2, 6))
    changed = inputs.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    before, after = model(inputs), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])
    assert not torch.allclose(before[:, 5], after[:, 5])


def test_the_same_token_elsewhere_has_other_logits() -> None:
    logits = small()(torch.full((1, 6), 3))
    assert not torch.allclose(logits[0, 0], logits[0, 1])


def test_attention_is_softmax_of_scaled_products_over_the_past() -> None:
    attention = small().layers[0].attention
    x = torch.randn(1, 6, 8)
    query, key, value = attention.qkv(x)[0].split(8, dim=-1)
    future = torch.ones(6, 6).triu(1).bool()
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        scores = query[:, h] @ key[:, h].T / 4**0.5
        heads.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ value[:, h])
    expected = attention.out(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x)[0], expected)


def test_flops_a_token_by_hand() -> None:
    # tokens 11*8, a layer 4*64 + 8*64 and two norms of 8, the last norm 8
    weights = 88 + 2 * (256 + 512 + 16) + 8
    assert small().flops_per_unit() == 6 * weights + 12 * 2 * 8 * 6 == 11136


def test_flops_agree_with_torchs_own_counter_on_the_linear_layers() -> None:
    model = small()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 6, dtype=torch.int64)).sum().backward()
    counted = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "mm" in str(op))
    attention, norms = 12 * 2 * 8 * 6, 6 * (2 * 16 + 8)
    assert counted == 6 * (model.flops_per_unit() - attention - norms)


def test_the_output_head_is_the_embedding_and_stands_once_in_the_state() -> None:
    model = small()
    names = {name for name, _ in model.named_parameters()}
    assert set(model.state_dict()) == names
    assert not any("bias" in name or "head" in name for name in names)
    assert sum(p.numel() for p in model.parameters()) == 1664 + 6 * 8


def test_initial_values_are_scaled_and_follow_the_seed() -> None:
    torch.manual_seed(1)
    model = Gpt(vocab_size=100, context_length=64, layers=8, heads=4, width=128).open(None)
    block = model.layers[3]
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.positions.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.feed_forward.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.attention.out.weight.std().item() == pytest.approx(0.005, rel=0.05)
    assert block.feed_forward.out.weight.std().item() == pytest.approx(0.005, rel=0.05)
    pairs = zip(small(5).parameters(), small(5).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(small(5).tokens.weight, small(6).tokens.weight)


def test_blocks_are_the_layers() -> None:
    model = small()
    assert model.blocks() == list(model.layers)
    assert len(model.blocks()) == 2


def test_too_long_a_sequence_says_both_lengths() -> None:
    with pytest.raises(ValueError, match=r"7 tokens .* model\.context_length=6"):
        small()(torch.zeros(1, 7, dtype=torch.int64))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 3}, "width=8: not divisible by heads=3"),
        ({"layers": 0}, "layers=0: give 1 or more"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"context_length": -1}, "context_length=-1"),
    ],
)
def test_values_are_checked(changed: dict[str, int], message: str) -> None:
    fields = {"vocab_size": 11, "context_length": 6, "layers": 2, "heads": 2, "width": 8}
    with pytest.raises(ValueError, match=message):
        Gpt(**(fields | changed))


def test_a_few_steps_lower_the_loss() -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.randint(11, (8, 6))
    targets = (inputs + 1) % 11
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(2.398, abs=0.05)  # ln 11: every token equally likely
    assert losses[-1] < 0.6 * losses[0]
