"""Training data from files to labels: what is recognised, left out, held out, and learned."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

for name in ("torch", "transformers", "trl", "datasets"):
    pytest.importorskip(name, reason="needs the train extra")
pytestmark = pytest.mark.train

import torch
import trl
from datasets import Dataset, DatasetDict
from tiny import llama, tokenizer
from transformers import LlamaConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from diagnose.callbacks.qlora.data import TrainingData, load_data
from diagnose.callbacks.qlora.encode import IGNORED, ChatTemplateError, Encoded, encode
from diagnose.callbacks.qlora.lengths import Lengths, choose_length, measure_lengths
from diagnose.callbacks.qlora.split import held_out
from diagnose.callbacks.qlora.tokenized import check_labels, tokenize_data
from diagnose.callbacks.qlora.tokenizer import prepare_tokenizer
from diagnose.errors import TrainingInputError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: As Qwen3's: what the assistant thought is dropped from all turns but the last.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "<think>a</think>first"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "<think>b</think>second"},
]


def chat_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    made = tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = template
    return made


def write(path: Path, rows: Sequence[Any]) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


def pairs(n: int, start: int = 0) -> list[dict[str, str]]:
    return [{"prompt": f"number {i} is ", "completion": f"{i}!"} for i in range(start, start + n)]


def learned(encoded: Encoded, words: PreTrainedTokenizerFast) -> str:
    return str(words.decode([label for label in encoded.labels if label != IGNORED]))


def test_recognised_counted_and_left_out_by_line(tmp_path: Path) -> None:
    file = write(
        tmp_path / "train.jsonl",
        [*pairs(20), "{broken\n", {"prompt": "x", "completion": ""}, {"text": "other"}, {"prompt": "x", "completion": 3}],
    )
    data = load_data(file)
    assert data.kind == "prompt-completion"
    assert len(data.train) + len(data.validation or []) == 20
    assert [bad.place for bad in data.left_out] == [f"train.jsonl line {i}" for i in (21, 22, 23, 24)]
    assert data.notes[0].endswith("20 examples, recognised as prompt-completion by the columns completion, prompt")
    for told in ("4 of 24 rows left out", "not JSON (1: train.jsonl line 21)", "empty answer (1: train.jsonl line 22)"):
        assert told in data.notes[1]
    assert "columns text where most rows are prompt-completion (1: train.jsonl line 23)" in data.notes[1]


def test_nothing_to_train_on_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match=r"has the columns body, title; expected messages, .*rename"):
        load_data(write(tmp_path / "a.jsonl", [{"title": "x", "body": "y"}]))
    with pytest.raises(TrainingInputError, match=r"no row of .* can be trained on: empty answer \(1: b.jsonl line 1\)"):
        load_data(write(tmp_path / "b.jsonl", [{"prompt": "x", "completion": " "}]))
    with pytest.raises(TrainingInputError, match=r"no row of .* can be read: not JSON \(2: c.jsonl line 1, c.jsonl line 2\)"):
        load_data(write(tmp_path / "c.jsonl", ["{x\n", "{y\n"]))
    with pytest.raises(TrainingInputError, match="no such file or folder"):
        load_data(str(tmp_path / "none.jsonl"))
    with pytest.raises(TrainingInputError, match="no file or folder here, and cannot be loaded from the hub"):
        load_data("nobody/nothing-of-this-name")


@pytest.mark.parametrize(("n", "expected"), [(1, 0), (19, 0), (20, 2), (499, 49), (500, 50), (2000, 100)])
def test_the_split_is_seeded_and_sized(tmp_path: Path, n: int, expected: int) -> None:
    file = write(tmp_path / "train.jsonl", pairs(n))
    data, again, other = load_data(file), load_data(file), load_data(file, seed=1)
    held = data.validation.to_list() if data.validation is not None else []
    assert len(held) == expected
    assert len(data.train) == n - expected
    assert not [row for row in data.train.to_list() if row in held]
    assert again.train.to_list() == data.train.to_list()
    if expected:
        assert other.validation is not None
        assert other.validation.to_list() != held
        assert f"{expected} examples of {n:,} held out" in data.notes[-1]
    else:
        assert data.validation is None
        assert "too few to hold some out" in data.notes[-1]


def test_duplicates_do_not_straddle_the_split(tmp_path: Path) -> None:
    data = load_data(write(tmp_path / "train.jsonl", pairs(40) * 3))
    assert data.validation is not None
    held = data.validation.to_list()
    assert len(held) == 4  # a tenth of the 40 that differ
    assert len(data.train) == 3 * 36
    assert not [row for row in data.train.to_list() if row in held]
    assert "8 training examples removed that the validation set holds as well" in data.notes
    assert "72 training examples repeat others word for word, and are kept" in data.notes
    assert any(note.startswith("4 examples of 40 held out") for note in data.notes)
    few = load_data(write(tmp_path / "few.jsonl", pairs(10) * 9))
    assert few.validation is None
    assert any("10 different examples are too few" in note for note in few.notes)


def test_a_validation_file_is_taken_and_kept_out_of_training(tmp_path: Path) -> None:
    train, other = write(tmp_path / "train.jsonl", pairs(30)), write(tmp_path / "val.jsonl", pairs(10, start=25))
    data = load_data(train, other)
    assert data.validation is not None
    assert data.validation.to_list() == pairs(10, start=25)
    assert data.train.to_list() == pairs(25)
    assert data.notes[-1] == "5 training examples removed that the validation set holds as well"
    with pytest.raises(TrainingInputError, match="is in the validation set as well"):
        load_data(train, train)
    with pytest.raises(TrainingInputError, match=r"has text rows, but .* has prompt-completion rows"):
        load_data(train, write(tmp_path / "text.jsonl", [{"text": "x"}]))


def test_saved_data_sets_with_and_without_splits(tmp_path: Path) -> None:
    Dataset.from_list(pairs(40)).save_to_disk(tmp_path / "plain")
    assert len(load_data(str(tmp_path / "plain")).train) == 36
    splits = DatasetDict(train=Dataset.from_list(pairs(40)), test=Dataset.from_list(pairs(5, start=100)))
    splits.save_to_disk(tmp_path / "splits")
    data = load_data(str(tmp_path / "splits"))
    assert data.validation is not None
    assert (len(data.train), data.validation.to_list()) == (40, pairs(5, start=100))
    assert any(note.startswith("the test split of") for note in data.notes)
    DatasetDict(a=Dataset.from_list(pairs(2)), b=Dataset.from_list(pairs(2))).save_to_disk(tmp_path / "odd")
    with pytest.raises(TrainingInputError, match="has the splits a, b, but none called train"):
        load_data(str(tmp_path / "odd"))
    (tmp_path / "plain" / "state.json").write_text("{")
    with pytest.raises(TrainingInputError, match="is a damaged data set"):
        load_data(str(tmp_path / "plain"))


def test_parquet_with_columns_that_some_rows_lack(tmp_path: Path) -> None:
    rows = [{"messages": CONVERSATION, "score": 1.0}] * 3 + [{"messages": None, "score": 0.0}]
    Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    data = load_data(str(tmp_path / "train.parquet"))
    assert data.kind == "messages"
    assert data.train[0]["messages"] == CONVERSATION
    assert [bad.place for bad in data.left_out] == ["train.parquet row 4"]


def test_only_the_answers_of_a_conversation_are_learned_their_ends_included() -> None:
    words = chat_tokenizer()
    (encoded,) = encode({"messages": CONVERSATION}, words)
    assert words.decode(encoded.input_ids) == words.apply_chat_template(CONVERSATION, tokenize=False)
    assert learned(encoded, words) == "<think>a</think>first<|im_end|>\n<think>b</think>second<|im_end|>\n"


def test_a_template_that_rewrites_earlier_turns_gives_a_sequence_for_each_answer() -> None:
    words = chat_tokenizer(FORGETFUL)
    first, second = encode({"messages": CONVERSATION}, words)
    assert learned(first, words) == "<think>a</think>first<|im_end|>\n"
    assert learned(second, words) == "<think>b</think>second<|im_end|>\n"
    assert words.decode(second.input_ids) == words.apply_chat_template(CONVERSATION, tokenize=False)


def test_a_template_of_plain_words_gets_an_end_token() -> None:
    words = chat_tokenizer(PLAIN)
    (encoded,) = encode({"messages": CONVERSATION}, words)
    assert learned(encoded, words) == "<think>a</think>first\n<think>b</think>second\n</s>"
    assert len(encoded.labels) == len(encoded.input_ids)


def test_completions_are_learned_with_one_end_token_and_prompts_are_not() -> None:
    words = tokenizer()
    (encoded,) = encode({"prompt": "the cat ", "completion": "learns"}, words)
    assert words.decode(encoded.input_ids) == "the cat learns</s>"
    assert learned(encoded, words).strip() == "learns</s>"
    (chat,) = encode({"prompt": CONVERSATION[:4], "completion": CONVERSATION[4:]}, chat_tokenizer())
    assert learned(chat, chat_tokenizer()) == "<think>b</think>second<|im_end|>\n"
    (text,) = encode({"text": "the cat"}, words)
    assert text.labels == text.input_ids
    assert text.input_ids[-1] == words.eos_token_id


CHAT_ROWS = [{"prompt": CONVERSATION[:n], "completion": CONVERSATION[n : n + 1]} for n in (2, 4)]


@pytest.mark.parametrize(
    "rows", [CHAT_ROWS, pairs(3), [{"text": "the cat"}, {"text": "a dog</s>"}]], ids=["chat", "pairs", "text"]
)
def test_encoding_agrees_with_trl_where_trl_can_do_it(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    words = chat_tokenizer()
    prepared = trainer(tmp_path, Dataset.from_list(rows), words).train_dataset
    ours = [encoded for row in rows for encoded in encode(row, words)]
    assert [row["input_ids"] for row in prepared] == [encoded.input_ids for encoded in ours]
    assert [row["labels"] for row in prepared] == [encoded.labels for encoded in ours]


def test_trl_trains_on_what_is_tokenized_and_keeps_every_label(tmp_path: Path) -> None:
    words = chat_tokenizer()
    data = load_data(write(tmp_path / "train.jsonl", [{"messages": CONVERSATION}, {"messages": CONVERSATION[:3]}]))
    tokenized = tokenize_data(data, words, max_length=256)
    made = trainer(tmp_path, tokenized.train, words)
    assert made.train_dataset["labels"][:] == tokenized.train["labels"][:]
    assert 0 < check_labels(next(iter(made.get_train_dataloader()))) < 1
    assert made.train().training_loss > 0


def test_what_is_cut_and_what_has_no_label_left_is_told(tmp_path: Path) -> None:
    words = tokenizer()
    rows = [*pairs(10), {"prompt": "a dog learns " * 30, "completion": "x"}, {"prompt": "go ", "completion": "the cat " * 60}]
    data = load_data(write(tmp_path / "train.jsonl", rows))
    tokenized = tokenize_data(data, words, max_length=32)
    assert len(tokenized.train) == 11
    assert max(len(row) for row in tokenized.train["input_ids"]) == 32
    assert "2 of 12 training sequences cut at 32 tokens" in tokenized.notes
    assert [(bad.place, bad.reason) for bad in tokenized.left_out] == [
        ("training example 10", "its answer begins after 32 tokens")
    ]
    assert tokenized.notes[-1].endswith("whose answers begin after 32 tokens: number 10")
    assert 0 < check_labels(tokenized.train) < 1
    with pytest.raises(TrainingInputError, match="every answer lies beyond 2 tokens"):
        tokenize_data(data, words, max_length=2)


def test_labels_are_checked_in_rows_and_in_batches() -> None:
    with pytest.raises(TrainingInputError, match=r"1 of 2 examples have no label left \(number 1\)"):
        check_labels([{"labels": [1, 2]}, {"labels": [IGNORED, IGNORED]}])
    with pytest.raises(TrainingInputError, match="no example to train on"):
        check_labels([])
    batch = {"labels": torch.tensor([[1, IGNORED], [IGNORED, IGNORED]])}
    with pytest.raises(TrainingInputError, match="number 1"):
        check_labels(batch)


def test_no_chat_template_and_one_that_refuses() -> None:
    with pytest.raises(TrainingInputError, match="no chat template"):
        encode({"messages": CONVERSATION}, tokenizer())
    strict = chat_tokenizer(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% endfor %}"
        + CHATML
    )
    with pytest.raises(ChatTemplateError, match=r"refuses a conversation of system, user, .*: no system role"):
        encode({"messages": CONVERSATION}, strict)


TEMPLATES = sorted(
    path for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja") if "training" not in path.stem
)
#: They take typed parts of messages, images among them, and no plain text.
NOT_FOR_TEXT = ("idefics3", "llava_next", "smolvlm")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"], ids=["plain", "thinking"])
def test_the_templates_of_real_models_learn_the_answers_and_nothing_that_was_asked(path: Path, thought: str) -> None:
    template = path.read_text()
    words = tokenizer()
    marks = sorted(set(re.findall(r"<[|｜]?[a-zA-Z_▁]+[|｜]?>", template)) - {"<think>"})  # noqa: RUF001 - DeepSeek's bars
    words.add_special_tokens({"additional_special_tokens": marks})
    words.chat_template = template
    turns = [("user", "first question"), ("assistant", f"{thought}first answer")]
    turns += [("user", "second question"), ("assistant", f"{thought}second answer")]
    conversation = {"messages": [{"role": role, "content": content} for role, content in turns]}
    if path.stem in NOT_FOR_TEXT:
        with pytest.raises(ChatTemplateError):
            encode(conversation, words)
        return
    sequences = encode(conversation, words)
    told = [learned(sequence, words) for sequence in sequences]
    assert "".join(told).count("first answer") == 1
    assert "".join(told).count("second answer") == 1
    assert "question" not in "".join(told)
    assert not [text for text in told if text.rstrip().endswith("answer")], "the end mark is not learned"


def test_a_conversation_that_the_template_refuses_is_left_out_and_told(tmp_path: Path) -> None:
    strict = chat_tokenizer("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML)
    rows = [{"messages": CONVERSATION[1:]}, {"messages": CONVERSATION}, {"messages": CONVERSATION[1:3]}]
    data = load_data(write(tmp_path / "train.jsonl", rows))
    tokenized = tokenize_data(data, strict, max_length=256)
    assert len(tokenized.train) == 2
    assert tokenized.notes[-1].startswith("1 training examples left out: the chat template refuses a conversation of system")
    assert tokenized.left_out[-1].place == "training example 1"
    assert len(measure_lengths(data, strict).tokens) == 2
    only = load_data(write(tmp_path / "only.jsonl", rows[1:2]))
    for refused in (lambda: tokenize_data(only, strict, max_length=256), lambda: measure_lengths(only, strict)):
        with pytest.raises(ChatTemplateError, match="no system role"):
            refused()


def test_many_sequences_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.callbacks.qlora.tokenized._BLOCK", 7)
    words = tokenizer()
    data = load_data(write(tmp_path / "train.jsonl", pairs(19)))
    tokenized = tokenize_data(data, words, max_length=64)
    assert [words.decode(row["input_ids"]) for row in tokenized.train] == [
        f"{row['prompt']}{row['completion']}</s>" for row in data.train
    ]


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ({"pad_token": "<pad>"}, "<pad>"),
        ({"pad_token": "</s>"}, "<pad>"),
        ({"pad_token": None}, "<pad>"),
    ],
)
def test_the_pad_token_is_never_the_end_token_where_there_is_another(setup: dict[str, Any], expected: str) -> None:
    words = tokenizer()
    words.pad_token = setup["pad_token"]
    config = LlamaConfig(vocab_size=len(words))
    notes = prepare_tokenizer(words, config)
    assert words.pad_token == expected
    assert words.padding_side == "right"
    assert config.pad_token_id == words.pad_token_id != words.eos_token_id
    assert len(notes) == (0 if setup["pad_token"] == expected else 1)


def without_spare() -> PreTrainedTokenizerFast:
    """A tokenizer whose only special tokens are those that begin and end."""
    inner = json.loads(tokenizer().backend_tokenizer.to_str().replace("<pad>", "<s2>"))
    from tokenizers import Tokenizer

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(inner)), bos_token="<s>", eos_token="</s>")


def test_an_unused_embedding_row_pads_and_else_the_end_token_whose_labels_stay() -> None:
    words = without_spare()
    n = len(words)
    assert "added in an embedding row that was unused" in prepare_tokenizer(words, LlamaConfig(vocab_size=n + 8))[0]
    assert words.pad_token_id == n
    words = without_spare()
    assert "for want of a spare one" in prepare_tokenizer(words, LlamaConfig(vocab_size=n))[0]
    assert words.pad_token_id == words.eos_token_id
    rows = [
        encode(row, words)[0] for row in ({"prompt": "a ", "completion": "dog"}, {"prompt": "the ", "completion": "cat learns"})
    ]
    collate = DataCollatorForLanguageModeling(pad_token_id=words.pad_token_id)
    batch = collate([{"input_ids": row.input_ids, "labels": row.labels} for row in rows])
    assert (batch["labels"] == words.eos_token_id).sum() == 2
    assert (batch["labels"][0] == IGNORED).sum() > (torch.tensor(rows[0].labels) == IGNORED).sum()


def test_a_tokenizer_that_cannot_be_trained_with_is_refused() -> None:
    words = tokenizer()
    with pytest.raises(TrainingInputError, match=r"has \d+ tokens but the model only 10 embeddings"):
        prepare_tokenizer(words, LlamaConfig(vocab_size=10))
    words.eos_token = None
    with pytest.raises(TrainingInputError, match="has no end token"):
        prepare_tokenizer(words, LlamaConfig(vocab_size=len(words)))


def measured(words_each: Sequence[int], **more: Any) -> Lengths:
    words = tokenizer()
    rows = [{"text": "!" * (n - 1)} for n in words_each]  # a mark is a token, and the end token comes on top
    return measure_lengths(TrainingData(Dataset.from_list(rows), None, "text", ()), words, **more)


def test_the_length_covers_95_percent_and_says_what_is_cut() -> None:
    lengths = measured([100] * 95 + [700] * 5)
    assert lengths.tokens.tolist() == [100] * 95 + [700] * 5
    assert (lengths.max_length, lengths.percentile(50), lengths.percentile(100)) == (512, 100, 700)
    assert lengths.share_cut() == 0.05
    assert lengths.notes == ("max_length 512: 5.0% of the examples are longer and will be cut (5 of 100)",)
    assert measured([100] * 94 + [700] * 6).max_length == 1024


def test_a_sample_is_measured_and_long_examples_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.callbacks.qlora.lengths.has_flash_attention", lambda: False)
    lengths = measured([3000] * 60, sample=50)
    assert (lengths.n_examples, lengths.n_measured, lengths.max_length) == (60, 50, 4096)
    assert "measured on 50 of 60 examples, drawn at random" in lengths.notes
    assert any("4096 tokens without FlashAttention" in note for note in lengths.notes)
    monkeypatch.setattr("diagnose.callbacks.qlora.lengths.has_flash_attention", lambda: True)
    assert not any("FlashAttention" in note for note in measured([3000] * 60).notes)
    assert any("none of 512" in note for note in measured([9000] * 3).notes)


def test_lengths_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    Console(width=80).print(measured([10] * 50 + [300] * 40 + [700] * 10))
    drawn = capsys.readouterr().out
    assert "longest" in drawn
    assert "700" in drawn
    assert drawn.count("█") > 30
    assert "max_length 1024: 0.0% of the examples are longer" in drawn


def test_choices_and_draws_are_as_documented() -> None:
    import numpy as np

    assert [choose_length(np.array([n])) for n in (1, 512, 513, 8192, 9000)] == [512, 512, 1024, 8192, 8192]
    assert held_out([bytes([i % 10]) for i in range(1000)], seed=0) == []


def trainer(folder: Path, train: Dataset, words: PreTrainedTokenizerFast) -> SFTTrainer:
    args = SFTConfig(
        output_dir=str(folder / "run"),
        max_steps=1,
        per_device_train_batch_size=2,
        max_length=256,
        bf16=False,
        activation_checkpointing=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        dataloader_pin_memory=False,
    )
    return SFTTrainer(model=llama(len(words)), args=args, train_dataset=train, processing_class=words)
