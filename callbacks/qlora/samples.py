"""What the model answers, looked at beside the losses: a few examples of the validation set, answered at each evaluation.

A loss can look healthy while the answers are noise, and the other way round. The answers are shown, and kept in
`samples.jsonl` for the model card. `CurveDoctor(sample_prompts=...)` takes texts; these are the tokens of real examples, system
prompt and earlier turns included, and what was expected stands beside the answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diagnose.callbacks.guard import guarded
from diagnose.callbacks.output import say
from diagnose.callbacks.qlora.encode import IGNORED
from diagnose.callbacks.sample_prompts import continued

FILE_NAME = "samples.jsonl"
#: Characters of each text that are shown.
_SHOWN = 100


@dataclass(frozen=True)
class Prompt:
    """The beginning of an example.

    Attributes:
        ids: (length,) tokens.
        text: the same, as text.
        expected: how the example goes on.
    """

    ids: list[int]
    text: str
    expected: str


def prompts_of(examples: Any, tokenizer: Any, n: int) -> list[Prompt]:
    """The beginnings of the first examples: what is not learned, or the first third where everything is.

    Args:
        examples: tokenized, with `input_ids` and `labels`.
        tokenizer: of the model.
        n: how many.
    """
    found = []
    for example in examples.select(range(min(n, len(examples)))):
        ids, labels = example["input_ids"], example["labels"]
        start = next((i for i, label in enumerate(labels) if label != IGNORED), len(ids))
        start = start or max(1, len(ids) // 3)
        text, rest = (tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:start], ids[start:]))
        found.append(Prompt(ids[:start], text, rest))
    return found


class Samples(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy, so its class is Any
    """Answers the prompts at each evaluation, on the first process.

    Args:
        prompts: what to answer.
        tokenizer: of the model.
        folder: where `samples.jsonl` is.
    """

    def __init__(self, prompts: Sequence[Prompt], tokenizer: Any, folder: Path) -> None:
        self.prompts, self.tokenizer, self.folder = prompts, tokenizer, folder
        self.failed = False
        self._asked = ""

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Answer at an evaluation."""
        self._answer(state, model)

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Answer at a checkpoint where there are no evaluations."""
        if args.eval_strategy == "no":
            self._answer(state, model)

    def _answer(self, state: Any, model: Any) -> None:
        """Answer, show and keep."""
        if not state.is_world_process_zero or model is None:
            return
        with (self.folder / FILE_NAME).open("a", encoding="utf-8") as file:
            for prompt in self.prompts:
                made = continued(model, self.tokenizer, prompt.ids)
                if prompt.text != self._asked:  # one question is asked again and again
                    say(f"    asked: {short(prompt.text)}")
                    self._asked = prompt.text
                say(f"    said:  {short(made) or '(nothing)'}")
                row = {"step": state.global_step, "prompt": prompt.text, "answer": made, "expected": prompt.expected}
                file.write(json.dumps(row) + "\n")


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """The answers of a run, in the order in which they were given; an evaluation that was repeated counts once."""
    path = folder / FILE_NAME
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return list({(row["step"], row["prompt"]): row for row in rows}.values())


def short(text: str) -> str:
    """A text on one line, cut where it is long: a prompt at its start, since its end is nearest to the answer."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else "..." + line[-_SHOWN:]
