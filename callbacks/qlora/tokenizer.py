"""A tokenizer that can be trained with: it has an end token, and a pad token that is not the end token.

Where padding is the end token, a trainer that masks padding masks the end as well, and the model never learns to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnose.errors import TrainingInputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

#: Tokens that models keep for padding or for nothing, the best first: Llama 3, Llama, BERT-like, Qwen, Phi, Gemma, Mistral.
_SPARE = (
    "<|finetune_right_pad_id|>",
    "<pad>",
    "[PAD]",
    "<|pad|>",
    "<|padding|>",
    "<|endoftext|>",
    "<|vision_pad|>",
    "<|reserved_special_token_0|>",
    "<unused0>",
    "[control_8]",
    "<unk>",
    "[UNK]",
)

#: The pad token that is made where the model has rows to spare for it.
_OWN = "<|pad|>"


def prepare_tokenizer(tokenizer: PreTrainedTokenizerBase, model_config: PreTrainedConfig | Any) -> tuple[str, ...]:
    """Give a tokenizer a pad token of its own, and pad on the right.

    The embeddings are not resized: a pad token comes from the vocabulary, or takes a row that the model has and the
    tokenizer does not use. Where neither is there the end token pads, which is told. It does no harm with the labels of
    `tokenized.py`, since they are made before padding.

    Args:
        tokenizer: changed in place.
        model_config: of the model; its `pad_token_id` is changed in place.

    Returns:
        What was done, a sentence each; nothing where nothing was to be done.

    Raises:
        TrainingInputError: there is no end token, or the tokenizer has tokens that the model has no embedding for.
    """
    n_rows = int(_text_config(model_config).vocab_size)
    if tokenizer.eos_token is None or tokenizer.eos_token_id is None:
        raise TrainingInputError(
            "the tokenizer has no end token, so the model could not learn to stop: set eos_token in tokenizer_config.json"
        )
    if len(tokenizer) > n_rows:
        raise TrainingInputError(
            f"the tokenizer has {len(tokenizer):,} tokens but the model only {n_rows:,} embeddings: "
            "take the tokenizer that belongs to the model, or resize the model's embeddings first"
        )
    tokenizer.padding_side = "right"
    notes = []
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        was = "there was none" if tokenizer.pad_token_id is None else "it was the end token"
        notes.append(_choose(tokenizer, n_rows, was))
    _text_config(model_config).pad_token_id = tokenizer.pad_token_id
    return tuple(notes)


def _choose(tokenizer: Any, n_rows: int, was: str) -> str:
    vocabulary = tokenizer.get_vocab()
    taken = {tokenizer.eos_token, tokenizer.bos_token}
    spare = next((name for name in _SPARE if name not in taken and vocabulary.get(name, n_rows) < n_rows), None)
    if spare is not None:
        tokenizer.pad_token = spare
        return f"pad token: {spare} of the vocabulary ({was})"
    if len(tokenizer) < n_rows and max(vocabulary.values()) + 1 < n_rows:
        tokenizer.add_special_tokens({"pad_token": _OWN})
        return f"pad token: {_OWN} added in an embedding row that was unused ({was})"
    tokenizer.pad_token = tokenizer.eos_token
    return (
        f"pad token: the end token {tokenizer.eos_token}, for want of a spare one; the labels keep the end token all the same"
    )


def _text_config(config: Any) -> Any:
    """The part of a model's configuration that is about text."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config
