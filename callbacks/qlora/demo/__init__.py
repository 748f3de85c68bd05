"""The demo of the trainer: a tiny Llama made on the spot, fine-tuned with LoRA first at a rate that is too high.

The base learns for a few seconds to speak the language of the examples, as a real base has in its pre-training: a random one
has nothing that an adapter could build on. Then everything is as in a real training, on the CPU.

What is not as in a real training: the rates. Adapters of so small a model want about fifty times the usual ones.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from diagnose.callbacks.output import say
from diagnose.callbacks.qlora.config import TrainConfig
from diagnose.callbacks.qlora.folder import run_name

#: Far too high: the best rate of this model and data is about 1e-2 (tried from 1e-3 to 1e-1).
TOO_HIGH = 0.1
#: Of the base: steps, examples a step, and rate. More steps would leave nothing to fine-tune.
_STEPS, _BATCH, _RATE = 60, 16, 3e-3
_VOCAB, _HIDDEN, _LAYERS, _CONTEXT = 512, 64, 2, 128


def demo_config(folder: Path) -> TrainConfig:
    """The settings of the demo, after its data and its base model are made.

    Args:
        folder: for all that the demo writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    data, base = folder / "examples.jsonl", folder / "base"
    shutil.copyfile(here / "examples.jsonl", data)
    if not (base / "model.safetensors").is_file():
        say(f"demo: making a tiny Llama, {_STEPS} steps of {_BATCH} sentences")
        make_base(base, (here / "base.txt").read_text(encoding="utf-8").splitlines())
    config = TrainConfig(
        model=str(base),
        data=str(data),
        method="lora",
        learning_rate=TOO_HIGH,
        num_train_epochs=8,
        per_device_train_batch_size=16,
        device="cpu",
    )
    return dataclasses.replace(config, output_dir=str(folder / run_name(config)))


def make_base(folder: Path, sentences: list[str], *, steps: int = _STEPS) -> None:
    """Train a tokenizer and a tiny Llama, and save them.

    Args:
        folder: where to.
        sentences: to learn from.
        steps: of 16 sentences each.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    tokenizer = make_tokenizer(sentences)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    set_seed(0)
    model = LlamaForCausalLM(config)
    ended = [sentence + tokenizer.eos_token for sentence in sentences]
    tokens = tokenizer(ended, padding=True, truncation=True, max_length=_CONTEXT, return_tensors="pt")  # (n, length)
    labels = tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    draw = torch.Generator().manual_seed(0)
    model.train()
    for step in range(steps):
        rows = torch.randint(len(sentences), (_BATCH,), generator=draw)
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / 10)
        loss = model(
            input_ids=tokens["input_ids"][rows], attention_mask=tokens["attention_mask"][rows], labels=labels[rows]
        ).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def make_tokenizer(sentences: list[str]) -> Any:
    """A byte-level BPE tokenizer of 512 tokens, trained on the sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(sentences, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
