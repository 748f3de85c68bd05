"""Rows of training data: formats known by content, bad rows kept aside with their lines. Only Parquet needs the train extra."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from diagnose.callbacks.qlora.columns import BadExampleError, example_of, layout_of
from diagnose.callbacks.qlora.read_rows import Rows, read_rows
from diagnose.errors import TrainingInputError

GOOD = {"prompt": "2+2=", "completion": "4"}


def rows_of(tmp_path: Path, content: str | bytes, name: str = "train.jsonl") -> Rows:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_rows(file)


def values(found: Rows) -> list[dict[str, object]]:
    return [row.values for row in found.rows]


def test_json_lines_with_a_broken_line_in_the_middle(tmp_path: Path) -> None:
    found = rows_of(tmp_path, f'{json.dumps(GOOD)}\n{{"prompt": "3\n\n{json.dumps(GOOD)}\n[1]\n"text"\n')
    assert values(found) == [GOOD, GOOD]
    assert [row.place for row in found.rows] == ["train.jsonl line 1", "train.jsonl line 4"]
    assert [(bad.place, bad.reason.split(":")[0]) for bad in found.bad] == [
        ("train.jsonl line 2", "not JSON"),
        ("train.jsonl line 5", "is a list, not an object with columns"),
        ("train.jsonl line 6", "is text, not an object with columns"),
    ]


def test_a_broken_first_line_is_a_bad_row_and_not_a_bad_file(tmp_path: Path) -> None:
    found = rows_of(tmp_path, f'{{"prompt": \n{json.dumps(GOOD)}\n')
    assert values(found) == [GOOD]
    assert [bad.place for bad in found.bad] == ["train.jsonl line 1"]


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""], ids=["BOM", "no BOM"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_marks_and_line_ends_are_not_content(tmp_path: Path, mark: bytes, end: str) -> None:
    assert values(rows_of(tmp_path, mark + (json.dumps(GOOD) + end).encode() * 2)) == [GOOD, GOOD]
    found = rows_of(tmp_path, mark + f"prompt,completion{end}2+2=,4{end}".encode(), "train.csv")
    assert values(found) == [GOOD]


def test_utf_16_is_read(tmp_path: Path) -> None:
    assert values(rows_of(tmp_path, (json.dumps(GOOD) + "\n").encode("utf-16"))) == [GOOD]


def test_unicode_stays_as_it_is_and_does_not_break_lines(tmp_path: Path) -> None:
    row = {"prompt": "نص\u2028لغة 🙂", "completion": "جيد\u0085"}
    assert values(rows_of(tmp_path, json.dumps(row, ensure_ascii=False) + "\n")) == [row]


def test_bytes_that_are_no_text_spoil_their_row_only(tmp_path: Path) -> None:
    found = rows_of(tmp_path, json.dumps(GOOD).encode() + b'\n{"text": "caf\xe9"}\n{"text": "\\ud800"}\n')
    assert values(found) == [GOOD]
    assert [(bad.place, bad.reason) for bad in found.bad] == [
        ("train.jsonl line 2", "holds bytes that are not UTF-8 text"),
        ("train.jsonl line 3", "holds bytes that are not UTF-8 text"),
    ]


def test_a_huge_line_is_a_row(tmp_path: Path) -> None:
    row = {"text": "x" * 3_000_000}
    assert values(rows_of(tmp_path, json.dumps(row) + "\n")) == [row]
    assert values(rows_of(tmp_path, "text\n" + "x" * 3_000_000 + "\n", "train.csv")) == [row]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([GOOD, GOOD]),
        json.dumps([GOOD, GOOD], indent=2),
        json.dumps({"data": [GOOD, GOOD]}),
        json.dumps({"version": 1, "train": [GOOD, GOOD]}, indent=1),
    ],
    ids=["list", "pretty list", "container", "pretty container"],
)
@pytest.mark.parametrize("name", ["train.json", "train.jsonl", "train.txt"])
def test_json_is_known_by_its_content(tmp_path: Path, content: str, name: str) -> None:
    assert values(rows_of(tmp_path, content, name)) == [GOOD, GOOD]


def test_one_row_is_a_row_whatever_its_format(tmp_path: Path) -> None:
    assert values(rows_of(tmp_path, json.dumps(GOOD))) == [GOOD]
    assert values(rows_of(tmp_path, json.dumps(GOOD, indent=2), "train.json")) == [GOOD]


def test_json_lines_under_a_wrong_extension(tmp_path: Path) -> None:
    lines = f"{json.dumps(GOOD)}\n{json.dumps(GOOD)}\n"
    for name in ("train.json", "train.csv", "train.txt", "train"):
        assert values(rows_of(tmp_path, lines, name)) == [GOOD, GOOD]
    assert values(rows_of(tmp_path, gzip.compress(lines.encode()), "train.jsonl.gz")) == [GOOD, GOOD]


def test_csv_with_quotes_line_breaks_and_a_row_that_is_too_long(tmp_path: Path) -> None:
    found = rows_of(tmp_path, 'prompt,completion\n"a, b","c\nd"\n1,2,3\n\nq,r\n', "train.csv")
    assert values(found) == [{"prompt": "a, b", "completion": "c\nd"}, {"prompt": "q", "completion": "r"}]
    assert [(bad.place, bad.reason) for bad in found.bad] == [("train.csv line 4", "3 cells where the header has 2")]


@pytest.mark.parametrize(("delimiter", "name"), [("\t", "train.tsv"), (";", "train.csv"), ("\t", "train.csv")])
def test_the_delimiter_is_the_one_that_the_header_has(tmp_path: Path, delimiter: str, name: str) -> None:
    assert values(rows_of(tmp_path, f"prompt{delimiter}completion\n2+2={delimiter}4\n", name)) == [GOOD]


def test_a_folder_gives_all_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("prompt,completion\nb,b\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "completion": "a"}\n')
    (tmp_path / "README.md").write_text("not data")
    assert [row.place for row in read_rows(tmp_path).rows] == ["a.jsonl line 1", "b.csv line 2"]


@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.csv"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str, name: str) -> None:
    with pytest.raises(TrainingInputError, match="holds no rows"):
        rows_of(tmp_path, content, name)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ('[{"a": 1},', "train.json", r"is not valid JSON: .* with one example a line, name it \.jsonl"),
        ("hello", "train.json", "is not JSONL, JSON, CSV, TSV or Parquet: it starts with 'hello'"),
        (b"PAR1 and no more", "train.parquet", "is not a readable Parquet file"),
        ("prompt,prompt\nx,y\n", "train.csv", "has a column twice: prompt, prompt"),
        (gzip.compress(b"abc" * 99)[:12] + b"x" * 20, "train.jsonl.gz", "cannot be read"),
        (gzip.compress(b"abc" * 99)[:-9], "train.jsonl.gz", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, content: str | bytes, name: str, message: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="needs the train extra")
    with pytest.raises(TrainingInputError, match=message):
        rows_of(tmp_path, content, name)


def test_no_file_and_an_empty_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(TrainingInputError, match="no such file or folder"):
        read_rows(tmp_path / "none.jsonl")
    with pytest.raises(TrainingInputError, match=r"holds no data: expected .*\.jsonl"):
        read_rows(tmp_path)


TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize(
    ("row", "layout", "example"),
    [
        ({"messages": TURNS, "prompt": "x", "completion": "y", "id": 3}, "messages", {"messages": TURNS}),
        ({"messages": json.dumps(TURNS)}, "messages", {"messages": TURNS}),
        ({"conversations": TURNS}, "messages", {"messages": TURNS}),
        (
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
            "sharegpt",
            {"messages": TURNS},
        ),
        ({"messages": [*TURNS, {"role": "user", "content": "bye"}]}, "messages", {"messages": TURNS}),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, TURNS[1]]},
            "messages",
            {"messages": TURNS},
        ),
        (GOOD, "prompt-completion", GOOD),
        ({"question": "2+2=", "answer": "4", "text": "no"}, "prompt-completion", GOOD),
        ({"prompt": TURNS[:1], "completion": TURNS[1:]}, "chat-completion", {"prompt": TURNS[:1], "completion": TURNS[1:]}),
        (
            {"instruction": "hi", "input": "", "output": "hello", "text": "### Instruction: hi"},
            "alpaca",
            {"messages": TURNS},
        ),
        (
            {"instruction": "hi", "context": "there", "response": "hello"},
            "alpaca",
            {"messages": [{"role": "user", "content": "hi\n\nthere"}, TURNS[1]]},
        ),
        ({"text": "once", "messages": None}, "text", {"text": "once"}),
    ],
)
def test_layouts_and_their_examples(row: dict[str, object], layout: str, example: dict[str, object]) -> None:
    found = layout_of(row)
    assert found == layout
    assert example_of(row, found, chat=True) == example


def test_alpaca_without_a_chat_template_has_its_own_prompt() -> None:
    row = {"instruction": "Sort.", "input": "b a", "output": "a b"}
    example = example_of(row, "alpaca", chat=False)
    assert example["completion"] == "a b"
    assert example["prompt"].endswith("### Instruction:\nSort.\n\n### Input:\nb a\n\n### Response:\n")
    assert "### Input" not in example_of(row | {"input": " "}, "alpaca", chat=False)["prompt"]


@pytest.mark.parametrize("row", [{}, {"a": 1}, {"prompt": "x"}, {"instruction": "x"}, {"text": None}])
def test_other_columns_have_no_layout(row: dict[str, object]) -> None:
    assert layout_of(row) is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "x", "completion": ""}, "empty answer"),
        ({"prompt": "x", "completion": " \n"}, "empty answer"),
        ({"prompt": " ", "completion": "y"}, "empty prompt"),
        ({"prompt": "x", "completion": 4}, "answer is a number, not text"),
        ({"instruction": "x", "input": ["y"], "output": "z"}, "input is a list, not text"),
        ({"text": {"a": 1}}, "text is an object, not text"),
        ({"messages": []}, "messages is empty"),
        ({"messages": 3}, "messages is a number, not a list of turns"),
        ({"messages": ["hi"]}, "a turn is text, not an object with 'role' and 'content'"),
        ({"messages": TURNS[:1]}, "no turn of the assistant"),
        ({"messages": [TURNS[0], {"role": "assistant", "content": ""}]}, "empty answer"),
        ({"messages": [TURNS[0], {"role": "assistant", "content": None}]}, "content of a turn is missing"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "no 'role' of .* it has 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "something other than text"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]}, "calls a tool"),
        ({"prompt": TURNS[:1], "completion": "hello"}, "completion is text, not a list of turns"),
        ({"prompt": "hi", "completion": TURNS[1:]}, "answer is a list, not text"),
        ({"conversations": [{"from": 3, "value": "x"}]}, "no 'from' of .* it has 3"),
    ],
)
def test_bad_rows_say_why(row: dict[str, object], reason: str) -> None:
    layout = layout_of(row)
    assert layout is not None
    with pytest.raises(BadExampleError, match=reason):
        example_of(row, layout, chat=True)
