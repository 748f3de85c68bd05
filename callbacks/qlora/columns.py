"""From the columns that people use to the three kinds of example that are trained on.

| layout | columns | becomes |
|---|---|---|
| messages | `messages`, or `conversations` with role and content | messages |
| sharegpt | `conversations` with from and value | messages |
| prompt-completion | `prompt` and `completion`, or another pair of `PAIRS` | prompt-completion |
| chat-completion | the same, each a list of messages | prompt-completion |
| alpaca | `instruction`, `output`, and maybe `input` | messages where there is a chat template, else prompt-completion |
| text | `text` | text |

Not covered: images, audio and tool calls, which are refused with a reason; preference data (`chosen`, `rejected`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from diagnose.callbacks.qlora.read_rows import type_name

Kind = Literal["messages", "prompt-completion", "text"]
Layout = Literal["messages", "sharegpt", "prompt-completion", "chat-completion", "alpaca", "text"]

#: Columns of a question and its answer, the most explicit first.
PAIRS = (("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("input", "output"))

#: Columns of an instruction, what it applies to, and its answer: Alpaca's, then Dolly's.
INSTRUCTIONS = (("instruction", "input", "output"), ("instruction", "context", "response"))

#: ShareGPT's speakers.
_SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}
_ROLES = ("system", "developer", "user", "assistant", "tool")

# The prompts that Stanford Alpaca was trained with (tatsu-lab/stanford_alpaca, train.py, PROMPT_DICT).
_ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
_ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)


class BadExampleError(ValueError):
    """A row that cannot be trained on; the message is the reason."""


def layout_of(row: Mapping[str, Any]) -> Layout | None:
    """The layout that a row's columns are in; None where they are in none.

    >>> layout_of({"instruction": "Add 2 and 2.", "input": "", "output": "4"})
    'alpaca'
    >>> layout_of({"prompt": "2+2=", "completion": None}) is None
    True
    """
    has = {name for name, value in row.items() if value is not None}
    if "messages" in has:
        return "messages"
    if "conversations" in has:
        turns = _turns(row["conversations"])
        return "messages" if turns and isinstance(turns[0], dict) and "role" in turns[0] else "sharegpt"
    if has >= set(PAIRS[0]):
        return "chat-completion" if isinstance(row[PAIRS[0][0]], list) else "prompt-completion"
    if any({instruction, answer} <= has for instruction, _, answer in INSTRUCTIONS):
        return "alpaca"
    if any(has >= set(pair) for pair in PAIRS[1:]):
        return "prompt-completion"
    return "text" if "text" in has else None


def kind_of(layout: Layout, *, chat: bool) -> Kind:
    """What the rows of a layout become.

    Args:
        layout: the layout.
        chat: whether the tokenizer has a chat template.
    """
    if layout in ("messages", "sharegpt"):
        return "messages"
    if layout == "alpaca":
        return "messages" if chat else "prompt-completion"
    return "text" if layout == "text" else "prompt-completion"


def example_of(row: Mapping[str, Any], layout: Layout, *, chat: bool) -> dict[str, Any]:
    """The example of a row: one of the columns `messages`, `text`, or the two `prompt` and `completion`.

    Args:
        row: its columns.
        layout: what `layout_of` said of it.
        chat: whether the tokenizer has a chat template.

    Raises:
        BadExampleError: something in it is missing, empty or not text.

    >>> example_of({"question": "2+2?", "answer": "4"}, "prompt-completion", chat=False)
    {'prompt': '2+2?', 'completion': '4'}
    """
    if layout == "messages":
        name = "messages" if row.get("messages") is not None else "conversations"
        return {"messages": _answered([_message(turn, "role", "content") for turn in _list(row[name], name)])}
    if layout == "sharegpt":
        return {
            "messages": _answered([_message(turn, "from", "value") for turn in _list(row["conversations"], "conversations")])
        }
    if layout == "alpaca":
        return _alpaca(row, chat=chat)
    if layout == "text":
        return {"text": _text(row["text"], "text")}
    if layout == "chat-completion":
        question, answer = PAIRS[0]
        prompt = [_message(turn, "role", "content") for turn in _list(row[question], question)]
        return {
            "prompt": prompt,
            "completion": _answered([_message(turn, "role", "content") for turn in _list(row[answer], answer)]),
        }
    question, answer = next(pair for pair in PAIRS if all(row.get(name) is not None for name in pair))
    return {"prompt": _text(row[question], question), "completion": _text(row[answer], "answer")}


def _alpaca(row: Mapping[str, Any], *, chat: bool) -> dict[str, Any]:
    asked, about, answered = next(
        names for names in INSTRUCTIONS if row.get(names[0]) is not None and row.get(names[2]) is not None
    )
    instruction, answer = _text(row[asked], asked), _text(row[answered], "answer")
    context = row.get(about) or ""
    if not isinstance(context, str):
        raise BadExampleError(f"{about} is {type_name(context)}, not text")
    if chat:
        question = f"{instruction}\n\n{context}" if context.strip() else instruction
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    form = _ALPACA_WITH_INPUT if context.strip() else _ALPACA
    return {"prompt": form.format(instruction=instruction, input=context), "completion": answer}


def _turns(value: Any) -> list[Any]:
    """The turns of a conversation, which a CSV cell holds as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    return value if isinstance(value, list) else []


def _list(value: Any, name: str) -> list[Any]:
    turns = _turns(value)
    if not turns:
        raise BadExampleError(f"{name} is empty" if value == [] else f"{name} is {type_name(value)}, not a list of turns")
    return turns


def _message(turn: Any, speaker: str, said: str) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise BadExampleError(f"a turn is {type_name(turn)}, not an object with {speaker!r} and {said!r}")
    who = turn.get(speaker)
    role = who if speaker == "role" and who in _ROLES else _SPEAKERS.get(who) if isinstance(who, str) else None
    if role is None:
        known = _ROLES if speaker == "role" else tuple(_SPEAKERS)
        raise BadExampleError(f"a turn has no {speaker!r} of {', '.join(known)}: it has {who!r}")
    if turn.get("tool_calls"):
        raise BadExampleError("a turn calls a tool, which is not supported")
    content = turn.get(said)
    if isinstance(content, list):  # typed parts: [{"type": "text", "text": ...}]
        parts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
        if any(not isinstance(part, str) for part in parts):
            raise BadExampleError("a turn holds something other than text")
        content = "".join(part for part in parts if part is not None)
    if not isinstance(content, str):
        raise BadExampleError(f"the {said} of a turn is {type_name(content)}, not text")
    if role == "assistant" and not content.strip():
        raise BadExampleError("empty answer")
    return {"role": role, "content": content}


def _answered(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """The conversation up to its last answer: what is said after it has no answer to learn from."""
    while messages and messages[-1]["role"] != "assistant":
        messages = messages[:-1]
    if not messages:
        raise BadExampleError("no turn of the assistant")
    return messages


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadExampleError(f"{name} is {type_name(value)}, not text")
    if not value.strip():
        raise BadExampleError(f"empty {name}")
    return value
