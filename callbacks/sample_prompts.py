"""What the model itself says at each evaluation: the look with one's own eyes that no number replaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

#: Bounds of what one look costs: prompts, tokens a prompt, seconds a prompt.
MOST_PROMPTS = 4
MOST_TOKENS = 64
MOST_SECONDS = 10.0


def samples(model: Any, processing_class: Any, prompts: Sequence[str]) -> list[tuple[str, str]]:
    """Let the model go on from each prompt.

    It picks the likeliest token each time, so that two looks differ by the training alone and no random number is drawn. A
    tokenizer with a chat template gets the prompt as the user's turn. Works with adapters, and with gradient checkpointing,
    which is for training only.

    Args:
        model: as the Trainer hands it to callbacks.
        processing_class: its tokenizer, or a processor that has one.
        prompts: at most MOST_PROMPTS are used.

    Returns:
        Prompt and answer; empty where there is no tokenizer or the model cannot generate.
    """
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    if tokenizer is None or not callable(getattr(model, "generate", None)):
        return []
    return [(prompt, continued(model, tokenizer, _tokens(tokenizer, prompt)).strip()) for prompt in prompts[:MOST_PROMPTS]]


def continued(model: Any, tokenizer: Any, ids: Sequence[int]) -> str:
    """What the model makes of the beginning of a text: the likeliest token each time, within the bounds of one look.

    Args:
        model: whose weights stay as they are, and its mode of training or evaluation too.
        tokenizer: of the model.
        ids: (length,) tokens of the beginning.
    """
    model = getattr(model, "module", model)  # DistributedDataParallel and its like
    tokens = torch.tensor([list(ids)], device=next(model.parameters()).device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            made = model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=MOST_TOKENS,
                max_time=MOST_SECONDS,
                do_sample=False,
                use_cache=True,
                pad_token_id=pad,
                eos_token_id=tokenizer.eos_token_id,
            )
    finally:
        model.train(was_training)
    return str(tokenizer.decode(made[0, tokens.shape[1] :], skip_special_tokens=True))


def _tokens(tokenizer: Any, prompt: str) -> list[int]:
    if getattr(tokenizer, "chat_template", None):
        turns = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return list(tokenizer(prompt)["input_ids"])
