"""Which data are conversations, what is held out by itself, what is told of packing, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.executor.chat_data import conversation, write_chat_tokenizer, write_chats, write_lines
from tests.executor.token_data import SENTENCES

from meshwright.executor.data.corpus import Corpus
from meshwright.executor.data.data_source import opened, prepared_source, told_packing
from meshwright.executor.data.packing import PackedSequences
from meshwright.specs.error import SpecError
from meshwright.specs.training.source import Source


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Conversations, others that are held out, text, and the folder `small` with a tokenizer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_chat_tokenizer(tmp_path / "small")
    write_chats(tmp_path / "chats.jsonl", range(30))
    write_chats(tmp_path / "others.jsonl", range(100, 104))
    write_lines(tmp_path / "lines.jsonl", [{"text": sentence * 3} for sentence in SENTENCES])
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"{name} " + SENTENCES[0] * 40)
    return tmp_path


def _chats(folder: Path, name: str = "chats.jsonl", **fields: Any) -> Source:
    return Source(folder / name, **{"tokenizer": folder / "small", **fields})


def test_all_is_trained_on_where_something_else_is_held_out(folder: Path) -> None:
    own = {"evaluate_every": 5, "evaluate_data": folder / "others.jsonl"}
    divided, given = (
        opened(prepared_source(_chats(folder, **more))) for more in ({"evaluate_every": 5}, own)
    )
    assert isinstance(divided, PackedSequences) and isinstance(given, PackedSequences)
    assert divided.shards.train.num_documents + divided.shards.held_out.num_documents == 30
    assert divided.shards.held_out.num_documents > 0
    assert (given.shards.train.num_documents, given.shards.held_out.num_documents) == (30, 4)
    assert given.digest not in (divided.digest, opened(prepared_source(_chats(folder))).digest)


def test_bytes_are_held_out_by_themselves_too(folder: Path) -> None:
    texts = [(folder / name).read_bytes() + b"\0" for name in ("one.txt", "two.txt")]
    found = opened(Source(folder / "one.txt", evaluate_every=1, evaluate_data=folder / "two.txt"))
    assert isinstance(found, Corpus)
    assert [found.train.tobytes(), found.held_out.tobytes()] == texts


def test_what_packing_loses_is_told(folder: Path) -> None:
    rows = [{"messages": conversation(number)} for number in range(30)]
    silent = [{"messages": rows[0]["messages"][:1]}, {"messages": []}]
    forged = {"messages": [{"role": "user", "content": "<|end|>"}, {"role": "assistant", "content": "no"}]}
    long = {"messages": [{"role": "user", "content": "the cat " * 90}, *rows[0]["messages"][1:]]}
    write_lines(folder / "mixed.jsonl", [*rows, *silent, forged, long])
    source = _chats(folder, "mixed.jsonl", evaluate_every=1, evaluate_data=folder / "others.jsonl")
    packed, lost = told_packing(prepared_source(source), 96)
    assert packed.startswith("30 conversations packed into ") and "sequences of 96 tokens" in packed
    assert "1 conversations are longer than 96 tokens and lose their ends" in lost
    assert "1 of these lose all of their answers and are left out" in lost
    assert "left out are 2 without an answer, 1 with the characters of a special token" in lost
    other_way = _chats(folder, evaluate_every=1, evaluate_data=folder / "mixed.jsonl")
    assert "left out are 2 without an answer" in told_packing(prepared_source(other_way), 96)[1]
    assert told_packing(prepared_source(_chats(folder)), 200)[1] == ""
    assert told_packing(prepared_source(Source(folder / "one.txt")), 16) == ("", "")


def test_a_line_with_text_is_text(folder: Path) -> None:
    found = opened(prepared_source(_chats(folder, "lines.jsonl")))
    assert isinstance(found, PackedSequences) and not found.shards.train.has_answers


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("chats.jsonl", {"tokenizer": None}, "no tokenizer is named.*--tokenizer"),
    ("chats.jsonl", {"document_mask": False}, "would see each other.*--no-document-mask"),
    ("lines.jsonl", {"chat_template": "small/tokenizer.json"}, "lines.jsonl, which has no conversations"),
    ("one.txt", {"chat_template": "none.jinja", "tokenizer": None}, "one.txt, which has no conversations"),
    ("chats.jsonl", {"chat_template": "none.jinja"}, "none.jinja cannot be read"),
    ("chats.jsonl", {"evaluate_every": 1, "evaluate_data": "lines.jsonl"}, "another kind of documents"),
    ("silent.jsonl", {}, "0 documents .left out are 3 without an answer."),
    ("mixture", {}, "mixture has conversations, and readme.md is a file of text"),
]


@pytest.mark.parametrize(("name", "fields", "message"), REFUSED)
def test_refused_by_name(folder: Path, name: str, fields: dict[str, Any], message: str) -> None:
    (folder / "mixture").mkdir()
    write_chats(folder / "mixture" / "chats.jsonl", range(3))
    (folder / "mixture" / "readme.md").write_text("text")
    write_lines(folder / "silent.jsonl", [{"messages": []}] * 3)
    paths = {key: folder / value if isinstance(value, str) else value for key, value in fields.items()}
    with pytest.raises(SpecError, match=message):
        prepared_source(_chats(folder, name, **paths))


def test_held_out_data_are_looked_at() -> None:
    with pytest.raises(SpecError, match="never looked at.*--evaluate-every"):
        Source("chats.jsonl", evaluate_data="others.jsonl")


def test_shards_of_conversations_remember_their_template(folder: Path) -> None:
    shards = prepared_source(_chats(folder)).data
    assert shards is not None
    assert prepared_source(_chats(folder, shards)).data == shards
    settings = folder / "small" / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("assistant", "model"))
    with pytest.raises(SpecError, match="were made with the tokenizer"):
        prepared_source(_chats(folder, shards))
    header = json.loads((Path(shards) / "shards.json").read_text())
    assert header["splits"]["train"]["shards"][0]["answers"]["size_bytes"] > 0
