"""Models of transformers: what is built, what is refused, and that one trains as a job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from paceline.model.hf_causal_lm import CausalLm, HfCausalLm
from paceline.types import CheckpointError, ConfigError
from tests.conftest import Command

SMALL = {
    "vocab_size": 11,
    "max_position_embeddings": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "bos_token_id": None,
    "eos_token_id": None,
}
HIDE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "transformers" else find(name, *rest)
"""


def small(model_type: str = "gpt2", seed: int = 0, dropout: float = 0.0, **more: Any) -> CausalLm:
    torch.manual_seed(seed)
    return HfCausalLm(model_type, SMALL | more, dropout, None).open(None)  # type: ignore[arg-type]


def loaded(folder: Path | str) -> CausalLm:
    return HfCausalLm(None, None, 0.0, str(folder)).open(None)  # type: ignore[arg-type]


class TestFresh:
    @pytest.fixture(autouse=True)
    def there(self) -> None:
        pytest.importorskip("transformers", reason="needs the extra hf")

    @pytest.mark.parametrize("model_type", ["gpt2", "llama"])
    def test_logits_have_a_row_for_every_token_and_see_no_later_one(self, model_type: str) -> None:
        more = {"intermediate_size": 16} if model_type == "llama" else {}
        model = small(model_type, **more)
        inputs = torch.randint(11, (2, 6))
        changed = inputs.clone()
        changed[:, 4] = (changed[:, 4] + 1) % 11
        before, after = model(inputs), model(changed)
        assert before.shape == (2, 6, 11)
        assert before.dtype is torch.float32
        assert torch.equal(before[:, :4], after[:, :4])
        assert not torch.allclose(before[:, 4:], after[:, 4:])
        assert model(inputs[:, :3]).shape == (2, 3, 11)

    def test_initial_values_follow_the_seed(self) -> None:
        pairs = zip(small(seed=5).parameters(), small(seed=5).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        first, other = (next(iter(small(seed=s).parameters())) for s in (5, 6))
        assert not torch.equal(first, other)

    def test_a_models_own_names_are_the_common_ones(self) -> None:
        own = {"n_layer": 3, "n_head": 4, "n_embd": 12}
        model = HfCausalLm("gpt2", {"vocab_size": 11, **own}, 0.0, None).open(None)  # type: ignore[arg-type]
        assert len(model.blocks()) == 3
        assert model.lm.config.hidden_size == 12

    def test_blocks_are_the_layers(self) -> None:
        model = small()
        assert model.blocks() == list(model.lm.transformer.h)

    def test_it_holds_no_cache_and_no_hidden_states(self) -> None:
        model = small()
        assert list(model.lm(input_ids=torch.zeros(1, 3, dtype=torch.int64))) == ["logits"]

    def test_no_dropout_unless_asked_for(self) -> None:
        inputs = torch.randint(11, (2, 6))
        model = small().train()
        assert torch.equal(model(inputs), model(inputs))
        dropping = small(dropout=0.3).train()
        assert not torch.equal(dropping(inputs), dropping(inputs))
        config = small(dropout=0.3, attn_pdrop=0.1).lm.config
        assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.3, 0.3, 0.1)

    def test_flops_a_token_by_hand_and_by_torchs_counter(self) -> None:
        model = small()
        assert model.flops_per_unit() is None  # T is that of a batch
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 6, dtype=torch.int64)).sum().backward()
        # a layer: 12 * 8 * 8 weights, 13 * 8 in biases and norms; the tied head 11 * 8, a norm 16
        weights = 2 * (768 + 104) + 88 + 16
        assert model.flops_per_unit() == 6 * weights + 12 * 2 * 8 * 6
        counted = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "mm" in str(op))
        assert counted == 6 * 6 * (weights - 2 * 104 - 16)

    def test_an_untied_embedding_is_looked_up_and_costs_nothing(self) -> None:
        tied = small("llama", intermediate_size=16, tie_word_embeddings=True)
        untied = small("llama", intermediate_size=16, tie_word_embeddings=False)
        for model in (tied, untied):
            model(torch.zeros(1, 6, dtype=torch.int64))
        assert tied.flops_per_unit() == untied.flops_per_unit()

    def test_a_mixture_of_experts_has_no_such_figure(self) -> None:
        model = small("mixtral", intermediate_size=16, num_key_value_heads=2, num_local_experts=4)
        model(torch.zeros(1, 6, dtype=torch.int64))
        assert model.flops_per_unit() is None

    def test_too_long_a_sequence_says_both_lengths(self) -> None:
        with pytest.raises(ValueError, match=r"7 tokens .* max_position_embeddings=6: raise it"):
            small()(torch.zeros(1, 7, dtype=torch.int64))

    def test_a_setting_that_would_do_nothing_is_refused(self) -> None:
        with pytest.raises(ConfigError) as caught:
            small(n_layers=3, wide=1)
        assert caught.value.problems == [
            "model.config.n_layers=3: GPT2Config has no such setting; did you mean n_layer?; "
            "remove: ~model.config.n_layers",
            "model.config.wide=1: GPT2Config has no such setting; remove: ~model.config.wide",
        ]

    def test_two_names_of_one_setting_are_refused(self) -> None:
        with pytest.raises(ConfigError) as caught:
            small(n_head=4)
        assert caught.value.problems == [
            "model.config.n_head=4: the same setting as model.config.num_attention_heads=2; give "
            "one of them, remove: ~model.config.n_head"
        ]

    @pytest.mark.parametrize(
        ("model_type", "more", "said"),
        [
            ("gptj2", {}, "model.model_type=gptj2: .* no such .*; did you mean gptj"),
            ("vit", {}, "model.model_type=vit: transformers has no such causal language model"),
            ("gpt2", {"num_attention_heads": 3}, "transformers refuses it .*divisible"),
        ],
    )
    def test_what_transformers_refuses(
        self, model_type: str, more: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(ConfigError, match=said):
            small(model_type, **more)

    def test_a_broken_package_that_transformers_uses_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision/__init__.py").write_text("raise RuntimeError('no such operator')")
        (tmp_path / "torchvision-0.28.0.dist-info").mkdir()
        metadata = "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
        (tmp_path / "torchvision-0.28.0.dist-info/METADATA").write_text(metadata)
        code = (
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
            "from paceline.model.hf_causal_lm import HfCausalLm\n"
            f"HfCausalLm('gpt2', {SMALL}, 0.0, None).open(None)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
        )
        last = done.stderr.splitlines()[-1]
        assert "can't import its model (RuntimeError: no such operator)" in last, done.stderr


class TestPretrained:
    @pytest.fixture(autouse=True)
    def there(self) -> None:
        pytest.importorskip("transformers", reason="needs the extra hf")

    def test_weights_and_config_of_a_folder(self, tmp_path: Path) -> None:
        model = small(dropout=0.5)
        model.lm.to(torch.bfloat16).save_pretrained(tmp_path)
        again = loaded(tmp_path)
        for name, value in again.state_dict().items():
            assert value.dtype is torch.float32  # what precision makes of it, it decides
            assert torch.equal(value, model.state_dict()[name].float())
        assert len(again.blocks()) == 2
        inputs = torch.randint(11, (2, 6))
        again.train()
        assert torch.equal(again(inputs), again(inputs))  # dropout is ours to set, not the file's

    def test_weights_that_are_not_whole(self, tmp_path: Path) -> None:
        small().lm.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "n_layer": 3}))
        with pytest.raises(CheckpointError, match=r"no fitting weights for 12 parameters, .*h\.2"):
            loaded(tmp_path)

    def test_no_such_folder_and_no_model_in_it(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="nowhere: there is no such folder"):
            loaded(tmp_path / "nowhere")
        with pytest.raises(CheckpointError, match=r"can't load it \("):
            loaded(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dropout": 1.0}, "dropout=1.0: give a probability"),
        ({"model_type": None}, "model_type=null: give one"),
        ({"config": None}, "config=null: give the sizes"),
        ({"pretrained": "x"}, "pretrained=x: .*set model.model_type=null model.config=null"),
    ],
)
def test_values_are_checked(changed: dict[str, Any], said: str) -> None:
    right = {"model_type": "gpt2", "config": {}, "dropout": 0.0, "pretrained": None}
    with pytest.raises(ValueError, match=said):
        HfCausalLm(**(right | changed))
    HfCausalLm(model_type=None, config=None, dropout=0.0, pretrained="x")


class TestAJob:
    def test_trains_on_real_text(self, command: Command) -> None:
        pytest.importorskip("transformers", reason="needs the extra hf")
        done = command(
            *("model=hf_causal_lm", "model.config.num_hidden_layers=1", "scheduler=constant"),
            *("model.config.hidden_size=32", "data.sequence_length=32", "data.max_bytes=100000"),
            *("run.steps=10", "run.eval_batches=1", "measure=quick", "measure.window_s=0"),
            "launch.threads_per_rank=1",
        )
        assert done.code == 0, done.err
        record = done.job()
        assert record["validity"]["verdict"] == "valid"
        assert record["throughput"]["units_used"] == 10 * 16 * 32
        assert record["numerics"]["loss"][-1] < record["numerics"]["loss"][0]

    def test_without_transformers_all_is_told_and_nothing_starts(self, command: Command) -> None:
        (command.cwd / "sitecustomize.py").write_text(HIDE)
        done = command("model=hf_causal_lm", "run.steps=0", env={"PYTHONPATH": str(command.cwd)})
        assert done.code == 2
        assert (
            "model._target_=paceline.model.hf_causal_lm.HfCausalLm: needs transformers, which is "
            "not installed; pip install 'paceline[hf]'"
        ) in " ".join(done.err.split())
        assert "run.steps=0" in done.err
        assert not (command.cwd / "outputs").exists()
