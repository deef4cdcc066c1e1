"""A causal language model of Hugging Face transformers, with fresh weights or loaded ones.

Sizes can be given by the names that nearly all of them share (`hidden_size`, `num_hidden_layers`,
`num_attention_heads`, `max_position_embeddings`, `vocab_size`) or by a model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.types import CheckpointError, ConfigError, Context

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Where one of these is above 1, a token meets only some of the parameters."""


@dataclass(frozen=True)
class HfCausalLm:
    """`config`: settings of the `model_type`, beside transformers' own defaults.

    `dropout` is set in the place of every dropout probability that `config` does not name.
    `pretrained`: a folder of save_pretrained, or a name on the hub; it brings weights and config.
    """

    model_type: str | None
    config: dict[str, Any] | None
    dropout: float
    pretrained: str | None

    requires: ClassVar[dict[str, str]] = {"transformers": "hf"}

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: give a probability, 0 to below 1")
        if self.pretrained is None:
            if self.model_type is None:
                raise ValueError("model_type=null: give one, as gpt2 or llama, or model.pretrained")
            if self.config is None:
                raise ValueError("config=null: give the sizes of the model, or model.pretrained")
        elif self.model_type is not None or self.config is not None:
            raise ValueError(
                f"pretrained={self.pretrained}: the weights come with their own model_type and "
                "config; set model.model_type=null model.config=null"
            )

    def open(self, context: Context) -> CausalLm:
        """Raises ConfigError for settings that the model type does not have, CheckpointError for
        weights that can't be loaded whole."""
        if self.pretrained is not None:
            return CausalLm(load(self.pretrained, self.dropout))
        return CausalLm(fresh(str(self.model_type), self.config or {}, self.dropout))


class CausalLm(nn.Module):
    """Tokens [B, T] int64 -> logits [B, T, V], T at most the config's max_position_embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.lm = model
        config = model.config
        self.longest = getattr(config, "max_position_embeddings", None)
        self.length = 0  # T of the last batch
        # counted here: later the parameters may be shards
        self._weights = _weights_in_products(model)
        self._attention_width = _attention_width(config)
        self._dense = not any((getattr(config, name, None) or 1) > 1 for name in EXPERTS)

    def forward(self, inputs: Tensor) -> Tensor:
        self.length = inputs.shape[1]
        if self.longest is not None and self.length > self.longest:
            raise ValueError(
                f"a sequence of {self.length} tokens is longer than the model's "
                f"max_position_embeddings={self.longest}: raise it in model.config, or lower "
                "data.sequence_length"
            )
        logits: Tensor = self.lm(input_ids=inputs).logits
        return logits

    def blocks(self) -> list[nn.Module]:
        """The decoder layers: those of the list of modules that holds the most parameters."""
        lists = [m for m in self.lm.modules() if isinstance(m, nn.ModuleList)]
        sizes = [_size(m) for m in lists]
        return list(lists[sizes.index(max(sizes))]) if lists else []

    def flops_per_unit(self) -> float | None:
        """Model FLOPs a token, forward and backward: 6 N + 12 layers width T (PaLM, appendix B).

        N: every parameter but embeddings that only look up; width: all heads of attention; T: of
        the last batch. None for a mixture of experts, or without a batch so far.
        """
        if not self._dense or self._attention_width is None or not self.length:
            return None
        return 6.0 * self._weights + 12.0 * self._attention_width * self.length


def fresh(model_type: str, settings: dict[str, Any], dropout: float) -> Any:
    """The transformers model of a config, with initial values from torch's generator."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if model_type not in KNOWN:
        raise ConfigError(
            [
                f"model.model_type={model_type}: transformers has no such causal language model"
                f"{_near(model_type, KNOWN) or '; give one, as gpt2 or llama'}"
            ]
        )
    plain = AutoConfig.for_model(model_type)
    problems = _without_effect(plain, settings)
    if problems:
        raise ConfigError(problems)
    try:
        config = AutoConfig.for_model(model_type, **{**_dropouts(plain, dropout), **settings})
        _only_logits(config)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except ImportError as error:
        raise _unusable(error) from error
    except Exception as error:
        raise ConfigError(
            [
                f"model.config={settings}: transformers refuses it ({_first_line(error)}); change "
                "these values"
            ]
        ) from error


def load(pretrained: str, dropout: float) -> Any:
    """The transformers model with the weights of a folder or a name on the hub, in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if pretrained.startswith(("/", ".")) and not Path(pretrained).is_dir():
        raise CheckpointError(
            f"model.pretrained={pretrained}: there is no such folder; give one that "
            "save_pretrained wrote"
        )
    try:
        config = AutoConfig.from_pretrained(pretrained)
        for name, value in _dropouts(config, dropout).items():
            setattr(config, name, value)
        _only_logits(config)
        model, found = AutoModelForCausalLM.from_pretrained(
            pretrained, config=config, dtype=torch.float32, output_loading_info=True
        )
    except ImportError as error:
        raise _unusable(error) from error
    except Exception as error:
        raise CheckpointError(
            f"model.pretrained={pretrained}: transformers can't load it ({_first_line(error)}); "
            "give a folder that save_pretrained wrote, or a name on the hub and a network"
        ) from error
    left_out = sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]]))
    if left_out:
        raise CheckpointError(
            f"model.pretrained={pretrained}: it has no fitting weights for {len(left_out)} "
            f"parameters, the first {left_out[0]}; give weights of a whole causal language model"
        )
    return model


def _without_effect(plain: Any, settings: dict[str, Any]) -> list[str]:
    """transformers takes any name, and two names of one thing, without a word."""
    known = {*plain.to_dict(), *plain.attribute_map}
    problems = [
        f"model.config.{name}={value}: {type(plain).__name__} has no such setting"
        f"{_near(name, known)}; remove: ~model.config.{name}"
        for name, value in settings.items()
        if name not in known
    ]
    return problems + [
        f"model.config.{own}={settings[own]}: the same setting as model.config.{name}="
        f"{settings[name]}; give one of them, remove: ~model.config.{own}"
        for name, own in plain.attribute_map.items()
        if name in settings and own in settings
    ]


def _dropouts(config: Any, value: float) -> dict[str, float]:
    """Every dropout probability of a config, as gpt2's resid_pdrop or llama's attention_dropout."""
    return {n: value for n, v in config.to_dict().items() if "drop" in n and isinstance(v, float)}


def _only_logits(config: Any) -> None:
    # a cache of keys and values is for generation; the rest would hold memory for nobody
    config.use_cache = config.output_hidden_states = config.output_attentions = False


def _weights_in_products(model: Any) -> int:
    looked_up = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    head = model.get_output_embeddings()
    kept = id(head.weight) if head is not None else None
    unused = sum(weight.numel() for weight in looked_up if id(weight) != kept)
    return _size(model) - unused


def _attention_width(config: Any) -> int | None:
    """layers x heads x size of a head; None where the config does not say."""
    layers = getattr(config, "num_hidden_layers", None)
    heads = getattr(config, "num_attention_heads", None)
    width = getattr(config, "hidden_size", None)
    if layers is None or heads is None or width is None:
        return None
    return int(layers * heads * (getattr(config, "head_dim", None) or width // heads))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _near(word: str, known: Any) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _unusable(error: ImportError) -> RuntimeError:
    """transformers hides what is wrong behind `Could not import module`; the cause says it."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return RuntimeError(
        f"transformers can't import its model ({type(cause).__name__}: {_first_line(cause)}): a "
        "package that it uses is broken or does not fit this torch; make its import work, or "
        "remove it"
    )


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
