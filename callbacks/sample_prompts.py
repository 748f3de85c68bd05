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
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return [(prompt, _answer(model, tokenizer, prompt)) for prompt in prompts[:MOST_PROMPTS]]
    finally:
        model.train(was_training)


def _answer(model: Any, tokenizer: Any, prompt: str) -> str:
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    else:
        inputs = tokenizer(prompt, return_tensors="pt")
    device = next(model.parameters()).device
    ids, mask = inputs["input_ids"].to(device), inputs["attention_mask"].to(device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=MOST_TOKENS,
        max_time=MOST_SECONDS,
        do_sample=False,
        use_cache=True,
        pad_token_id=pad,
    )
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)).strip()
