"""The sizes of a model that its memory depends on, read from its config.json without transformers.

Not covered: mixtures of experts, state-space, linear- and latent-attention models and encoders, which are refused rather than
guessed at; the vision or audio part of a model that has one, which is left out and told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.errors import TrainingInputError

#: Families with two linear layers in the MLP, not three: no gate.
_UNGATED = (
    *("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "nemotron"),
    *("opt", "phi", "starcoder2"),
)
#: Families that norm with LayerNorm, which autocast runs in float32.
_LAYER_NORM = (*_UNGATED, "cohere", "cohere2", "stablelm")
#: Families with one linear layer for query, key and value.
_FUSED_QKV = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "phi3")
#: Families that norm queries and keys, and that norm the outputs of attention and MLP too.
_QK_NORM, _POST_NORM = ("qwen3", "gemma3", "gemma3_text"), ("gemma2", "gemma3", "gemma3_text")
#: Activation functions written in Python, which keep a tensor for each of their steps.
_ACTIVATION_COPIES = {"gelu_new": 4}
#: Families that tie the head to the embeddings where their config.json does not say so.
_TIED = (
    *("bloom", "codegen", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo"),
    *("mpt", "opt", "starcoder2"),
)

#: Signs of a model whose layers are not what the formula counts.
_REFUSED = {
    "num_local_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "kv_lora_rank": "a model with latent attention",
    "state_size": "a state-space model",
}

#: The kinds of layer that are counted, of those that config.json lists one by one.
_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")

#: The sizes by the names that families give them.
_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
}
_ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function")
_MLP = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")


@dataclass(frozen=True)
class ModelShape:
    """What a decoder-only transformer is made of.

    Attributes:
        name: what to call it.
        n_layers: layers.
        hidden: width of the residual stream.
        mlp: width inside the MLP.
        n_heads: attention heads.
        n_kv_heads: key and value heads.
        head_dim: width of a head.
        vocab: rows of the embedding.
        is_gated: three linear layers in the MLP, not two.
        is_tied: the head is the embedding.
        has_layer_norm: LayerNorm, not RMSNorm.
        is_qkv_fused: one linear layer for query, key and value.
        has_qk_norm: queries and keys are normed.
        n_norms: norms a layer, those of queries and keys apart.
        n_activation_copies: tensors of the MLP's width that the activation function keeps.
        n_positions: learned positions.
        notes: what is not counted.
    """

    name: str
    n_layers: int
    hidden: int
    mlp: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    is_gated: bool = True
    is_tied: bool = False
    has_layer_norm: bool = False
    is_qkv_fused: bool = False
    has_qk_norm: bool = False
    n_norms: int = 2
    n_activation_copies: int = 1
    n_positions: int = 0
    notes: tuple[str, ...] = ()

    @property
    def q(self) -> int:
        """Width of all query heads."""
        return self.n_heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of all key heads."""
        return self.n_kv_heads * self.head_dim

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of each linear layer of a transformer layer: what is quantized and gets an adapter."""
        attention = [(self.hidden, self.q + 2 * self.kv)] if self.is_qkv_fused else []
        attention = attention or [(self.hidden, self.q), (self.hidden, self.kv), (self.hidden, self.kv)]
        mlp = [(self.hidden, self.mlp)] * (2 if self.is_gated else 1) + [(self.mlp, self.hidden)]
        return (*attention, (self.q, self.hidden), *mlp)

    @property
    def n_linear(self) -> int:
        """Parameters in the linear layers, the head apart."""
        return self.n_layers * sum(n_in * n_out for n_in, n_out in self.linears)

    @property
    def n_rest(self) -> int:
        """Parameters in the embeddings, the head and the norms: what QLoRA leaves in bf16. Biases are not counted."""
        norms = (self.n_norms * self.n_layers + 1) * self.hidden * (2 if self.has_layer_norm else 1)
        return self.vocab * self.hidden * (1 if self.is_tied else 2) + self.n_positions * self.hidden + norms

    @property
    def n_params(self) -> int:
        """All parameters."""
        return self.n_linear + self.n_rest

    def n_lora(self, r: int) -> int:
        """Parameters of adapters of rank r on all linear layers.

        >>> llama_2_7b = ModelShape("Llama 2 7B", 32, 4096, 11008, 32, 32, 128, 32000)
        >>> llama_2_7b.n_lora(16), llama_2_7b.n_params
        (39976960, 6738415616)
        """
        return self.n_layers * sum(r * (n_in + n_out) for n_in, n_out in self.linears)


def read_config(model: str) -> dict[str, Any]:
    """A model's config.json: of a folder, the file itself, or a name that the hub's local cache has.

    Raises:
        TrainingInputError: there is none, or it is not one. The network is never asked.
    """
    path = Path(model).expanduser()
    file = path / "config.json" if path.is_dir() else path if path.is_file() else _cached(model)
    if file is None or not file.is_file():
        where = "the folder has no config.json" if path.is_dir() else "no such file or folder, and not in the hub's local cache"
        raise TrainingInputError(f"{model}: {where}; give a folder with config.json, or download it first: hf download {model}")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingInputError(f"{file} is not a model's config.json: {error}") from None
    if not isinstance(config, dict):
        raise TrainingInputError(f"{file} is not a model's config.json: it holds a {type(config).__name__}")
    return config


def _cached(name: str) -> Path | None:
    """The newest config.json of a repository in the hub's cache (huggingface_hub's documented folder layout)."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    repository = cache / f"models--{name.strip('/').replace('/', '--')}"
    main = repository / "refs" / "main"
    if main.is_file():
        named = repository / "snapshots" / main.read_text().strip() / "config.json"
        if named.is_file():
            return named
    files = sorted(repository.glob("snapshots/*/config.json"), key=lambda file: file.stat().st_mtime)
    return files[-1] if files else None


def shape_of(config: Mapping[str, Any] | Any, name: str = "") -> ModelShape:
    """The shape that a configuration describes.

    Args:
        config: a config.json, or transformers' configuration object.
        name: what to call the model.

    Raises:
        TrainingInputError: a size is missing, or it is a kind of model that is not planned for.
    """
    values: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
    name = name or str(values.get("_name_or_path") or values.get("model_type") or "model")
    notes: tuple[str, ...] = ()
    if isinstance(values.get("text_config"), Mapping):
        values = values["text_config"]
        notes = ("only the language part of the model is counted, not its vision or audio part",)
    for key, kind in _REFUSED.items():
        if values.get(key) and values[key] != 1:
            raise TrainingInputError(f"{name} is {kind} ({key} {values[key]}), whose memory this plan cannot tell")
    if values.get("is_encoder_decoder"):
        raise TrainingInputError(f"{name} is an encoder with a decoder; only decoder models are trained")
    unknown = sorted({str(kind) for kind in values.get("layer_types") or () if kind not in _ATTENTION_LAYERS})
    if unknown:
        raise TrainingInputError(f"{name} has layers of the kind {', '.join(unknown)}, whose memory this plan cannot tell")
    sizes = {size: _size(values, names, name) for size, names in _NAMES.items()}
    family = str(values.get("model_type", ""))
    tied = values.get("tie_word_embeddings")
    n_kv_heads = values.get("num_key_value_heads") or (1 if values.get("multi_query") else None) or sizes["n_heads"]
    mlp = next((values[key] for key in _MLP if values.get(key)), None)
    activation = next((values[key] for key in _ACTIVATIONS if values.get(key)), "gelu_new" if family == "gpt2" else "")
    return ModelShape(
        name=name,
        **sizes,
        mlp=int(mlp or 4 * sizes["hidden"]),
        n_kv_heads=int(n_kv_heads),
        head_dim=int(values.get("head_dim") or sizes["hidden"] // sizes["n_heads"]),
        is_gated=family not in _UNGATED,
        is_tied=family in _TIED if tied is None else bool(tied),
        has_layer_norm=family in _LAYER_NORM,
        is_qkv_fused=family in _FUSED_QKV,
        has_qk_norm=family in _QK_NORM,
        n_norms=4 if family in _POST_NORM else 2,
        n_activation_copies=_ACTIVATION_COPIES.get(str(activation), 1),
        n_positions=int(values.get("n_positions") or 0) if family == "gpt2" else 0,
        notes=notes,
    )


def _size(values: Mapping[str, Any], names: tuple[str, ...], model: str) -> int:
    found = next((values[name] for name in names if isinstance(values.get(name), int)), 0)
    if found <= 0:
        raise TrainingInputError(
            f"the configuration of {model} has no {' or '.join(names)}: is it a language model's config.json?"
        )
    return int(found)
