"""One example to tokens and labels: the loss is on the answers only, the end token included.

A conversation is rendered by the model's own chat template. The labels of an answer begin where the conversation so far,
with the template's opening of an answer, ends; so any template will do, and it needs no `{% generation %}` marks. All
answers of a conversation are learned in one sequence. Where the template rewrites earlier turns (Qwen3 drops their
thoughts), the conversation becomes one sequence for each answer, with the context that the model will see when it is used.

Not covered: templates that take tools or documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnose.errors import TrainingInputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: The label of a token that the loss leaves out (torch's `ignore_index`).
IGNORED = -100

#: The end mark is looked for in so many tokens from the end of an answer: templates put a line end after it.
_MARK_WITHIN = 3

#: So much of an answer's last line must be in the rendered text: some templates drop its thoughts, those for images all of it.
_TAIL = 40


class ChatTemplateError(TrainingInputError):
    """A chat template refuses one conversation, such as one with a system turn."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sequence.

    Attributes:
        input_ids: (length,) tokens.
        labels: (length,) the token where it is learned, else `IGNORED`.
    """

    input_ids: list[int]
    labels: list[int]


def encode(example: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> list[Encoded]:
    """The sequences of an example, whole: one, or one for each answer where the template rewrites earlier turns.

    Args:
        example: with `messages`, or `prompt` and `completion`, or `text`.
        tokenizer: of the model.

    Raises:
        ChatTemplateError: the chat template refuses the conversation.
        TrainingInputError: the tokenizer has no chat template, and the example is a conversation.
    """
    if "messages" in example:
        return _conversation(example["messages"], 0, tokenizer)
    if "text" in example:
        ids = _ended(_ids(example["text"], tokenizer), tokenizer)
        return [Encoded(ids, list(ids))]
    prompt, completion = example["prompt"], example["completion"]
    if not isinstance(prompt, str):
        return _conversation([*prompt, *completion], len(prompt), tokenizer)
    ids = _ended(_ids(prompt + completion, tokenizer), tokenizer)
    return [_labelled(ids, [(_shared(_ids(prompt, tokenizer), ids), len(ids))])]


def _conversation(messages: Sequence[Mapping[str, str]], first: int, tokenizer: Any) -> list[Encoded]:
    """The answers of a conversation from message `first` on, in one sequence if the template allows it."""
    answers = [i for i, message in enumerate(messages) if i >= first and message["role"] == "assistant"]
    whole = _render(messages, tokenizer)
    if messages[-1]["content"].strip().rpartition("\n")[2][-_TAIL:] not in whole:
        raise ChatTemplateError("the chat template leaves the answer out: it is made for something other than text turns")
    ids = _tokens(whole, tokenizer)
    spans = []
    for i in answers[:-1]:
        before, through = _render(messages[:i], tokenizer, opened=True), _render(messages[: i + 1], tokenizer)
        if not (whole.startswith(before) and whole.startswith(through)):
            return [sequence for i in answers for sequence in _conversation(messages[: i + 1], i, tokenizer)]
        spans.append((_shared(_tokens(before, tokenizer), ids), _shared(_tokens(through, tokenizer), ids)))
    start = _shared(_tokens(_render(messages[:-1], tokenizer, opened=True), tokenizer), ids)
    if not _is_ended(ids[start:], tokenizer):
        ids = _ended(ids, tokenizer)  # a template of plain words never says that the answer is over
    return [_labelled(ids, [*spans, (start, len(ids))])]


def _is_ended(answer: Sequence[int], tokenizer: Any) -> bool:
    """Whether an answer ends with a special token, or one that was added to the vocabulary, perhaps before a line end."""
    marks = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    return any(token in marks for token in answer[-_MARK_WITHIN:])


def _render(messages: Sequence[Mapping[str, str]], tokenizer: Any, *, opened: bool = False) -> str:
    """The text of a conversation; with `opened`, up to where the next answer begins."""
    if not messages:
        return ""
    if not tokenizer.chat_template:
        raise TrainingInputError(
            "the tokenizer has no chat template, which conversations need: take the model's instruct variant, or set "
            "chat_template in its tokenizer_config.json, or give prompt and completion columns instead"
        )
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=opened))
    except Exception as error:  # a template raises what its author wrote, and jinja's own errors
        roles = ", ".join(message["role"] for message in messages)
        raise ChatTemplateError(f"the chat template refuses a conversation of {roles}: {error}") from error


def _tokens(rendered: str, tokenizer: Any) -> list[int]:
    """The tokens of rendered text, which holds its special tokens itself."""
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def _ids(text: str, tokenizer: Any) -> list[int]:
    """The tokens of plain text, with those that the tokenizer puts around it, less an end token."""
    ids = list(tokenizer(text)["input_ids"])
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids


def _ended(ids: list[int], tokenizer: Any) -> list[int]:
    return ids if ids[-1:] == [tokenizer.eos_token_id] else [*ids, tokenizer.eos_token_id]


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike: a token may span the end of one of them."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def _labelled(ids: list[int], spans: Sequence[tuple[int, int]]) -> Encoded:
    labels = [IGNORED] * len(ids)
    for start, end in spans:
        labels[start:end] = ids[start:end]
    return Encoded(ids, labels)
