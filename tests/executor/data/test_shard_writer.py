"""Making shards: used again, whole or not at all, by many at once, and of few documents."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.executor.token_data import NumberTokenization, write_documents, write_texts, write_tokenizer

from meshwright.executor.data import shard_writer, text_source
from meshwright.executor.data.shard_writer import PARTIAL, STALE_S, cache_folder, make_shards
from meshwright.executor.data.text_source import TextSource
from meshwright.executor.data.token_shard import TokenShards, has_shards
from meshwright.executor.data.tokenization import ByteTokenization, FileTokenization
from meshwright.executor.file.new_file import watching
from meshwright.specs.error import SpecError


@pytest.fixture
def source(tmp_path: Path) -> TextSource:
    return TextSource.open(write_texts(tmp_path / "text"))


class Broken(Exception):
    """What a test breaks with."""


def test_text_files_become_the_tokens_of_their_text(tmp_path: Path, source: TextSource) -> None:
    tokenization = FileTokenization(write_tokenizer(tmp_path / "small"))
    shards = make_shards(source, tokenization, tmp_path / "shards")
    expected = [tokenization.encode([piece])[0].tokens.tolist() for piece in source.pieces()]
    found: list[list[int]] = []
    for split in (shards.train, shards.held_out):
        rows = split.read(0, split.num_tokens).tolist()
        starts = split.starts(0, split.num_tokens).tolist()
        found += [rows[low : high - 1] for low, high in zip(starts, [*starts[1:], len(rows)])]
        assert all(rows[high - 1] == tokenization.end_id for high in [*starts[1:], len(rows)])
    assert sorted(found) == sorted(expected)
    assert shards.tokenizer == {"name": "small", "digest": tokenization.digest}


def test_pieces_and_batches_do_not_show(
    tmp_path: Path, source: TextSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_shards(source, ByteTokenization(), tmp_path / "whole")
    monkeypatch.setattr(text_source, "PIECE_BYTES", 16)
    monkeypatch.setattr(shard_writer, "BATCH_BYTES", 40)
    cut = make_shards(source, ByteTokenization(), tmp_path / "cut")
    for one, other in ((whole.train, cut.train), (whole.held_out, cut.held_out)):
        assert one.shards == other.shards  # with their checksums


def test_the_same_source_and_tokenizer_are_made_once(
    tmp_path: Path, source: TextSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = make_shards(source, ByteTokenization())
    assert first.folder == cache_folder(source, ByteTokenization()) and tmp_path in first.folder.parents
    changed_ns = (first.folder / "shards.json").stat().st_mtime_ns
    again = make_shards(TextSource.open(source.root), ByteTokenization())
    assert again.folder == first.folder
    assert (again.folder / "shards.json").stat().st_mtime_ns == changed_ns
    other = make_shards(source, FileTokenization(write_tokenizer(tmp_path / "small")))
    (source.root / "000.txt").write_text("changed")
    assert (
        len(
            {first.folder, other.folder, make_shards(TextSource.open(source.root), ByteTokenization()).folder}
        )
        == 3
    )


def test_progress_is_told_and_the_digest_is_of_the_tokens(
    tmp_path: Path, source: TextSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "BATCH_BYTES", 40)
    told: list[float] = []
    one = make_shards(source, ByteTokenization(), tmp_path / "one", told.append)
    assert told[0] == 0 and len(told) > 2 and told == sorted(told) and told[-1] <= 1
    for file in source.files:
        os.utime(source.root / file.name, (1e9, 1e9))
    touched = TextSource.open(source.root)
    assert touched.digest != source.digest
    assert make_shards(touched, ByteTokenization(), tmp_path / "two").digest == one.digest
    (source.root / source.files[0].name).write_text("something else")
    assert (
        make_shards(TextSource.open(source.root), ByteTokenization(), tmp_path / "three").digest != one.digest
    )
    others = FileTokenization(write_tokenizer(tmp_path / "small"))
    assert make_shards(TextSource.open(source.root), others, tmp_path / "four").digest != one.digest


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, source: TextSource) -> None:
    make_shards(source, ByteTokenization(), tmp_path / "shards")
    (source.root / "000.txt").write_text("changed")
    with pytest.raises(SpecError, match="made of other text or with another tokenizer"):
        make_shards(TextSource.open(source.root), ByteTokenization(), tmp_path / "shards")
    with pytest.raises(SpecError, match="is not empty"):
        make_shards(source, ByteTokenization(), source.root)


def _operations(source: TextSource, folder: Path) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    with watching(lambda operation, path: seen.append((operation, path.name))):
        make_shards(source, ByteTokenization(), folder)
    return seen


def test_interrupted_anywhere_leaves_nothing_half(tmp_path: Path, source: TextSource) -> None:
    """Every write, fsync and rename fails once: the folder is not there, or whole, and the next attempt succeeds."""
    operations = _operations(source, tmp_path / "whole" / "shards")
    assert {operation for operation, _ in operations} >= {"write", "fsync", "rename"}
    wanted = TokenShards.open(tmp_path / "whole" / "shards").train.shards
    for number in range(len(operations)):
        left = [number]

        error: Exception = OSError(28, "No space left on device") if number % 2 else Broken()

        def fail(operation: str, path: Path, left: list[int] = left, error: Exception = error) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise error

        folder = tmp_path / str(number) / "shards"
        with watching(fail), pytest.raises((SpecError, Broken)):
            make_shards(source, ByteTokenization(), folder)
        if has_shards(folder):  # it failed behind the rename
            TokenShards.open(folder).verify()
        assert not [path for path in folder.parent.glob("*") if path != folder]
        assert make_shards(source, ByteTokenization(), folder).train.shards == wanted


def test_a_full_disk_is_said(tmp_path: Path, source: TextSource) -> None:
    def full(operation: str, path: Path) -> None:
        if operation == "write":
            raise OSError(28, "No space left on device")

    with watching(full), pytest.raises(SpecError, match="cannot be written .*No space left on device"):
        make_shards(source, ByteTokenization(), tmp_path / "shards")


def test_many_at_once(tmp_path: Path, source: TextSource) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(
            threads.map(lambda _: make_shards(source, ByteTokenization(), tmp_path / "shards"), range(8))
        )
    assert all(one.train.shards == made[0].train.shards for one in made)
    made[0].verify()
    assert not list(tmp_path.glob(f"*{PARTIAL}*"))


def test_another_maker_ends_while_it_is_looked_at(
    tmp_path: Path, source: TextSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / f"shards{PARTIAL}gone"
    monkeypatch.setattr(shard_writer, "_siblings", lambda target: [gone])
    make_shards(source, ByteTokenization(), tmp_path / "shards").verify()


def test_another_maker_is_first_right_behind_the_look(
    tmp_path: Path, source: TextSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(target: Path) -> bool:
        monkeypatch.setattr(shard_writer, "has_shards", has_shards)
        found = has_shards(target)
        make_shards(source, ByteTokenization(), target)
        return found

    monkeypatch.setattr(shard_writer, "has_shards", looked_at)
    make_shards(source, ByteTokenization(), tmp_path / "shards").verify()


def _killed_while_it_writes(root: str, folder: str) -> None:
    def die(operation: str, path: Path) -> None:
        if operation == "rename":
            os._exit(9)

    with watching(die):
        make_shards(TextSource.open(root), ByteTokenization(), folder)


def test_what_a_killed_maker_left_goes_after_a_day(tmp_path: Path, source: TextSource) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_killed_while_it_writes, args=(str(source.root), str(tmp_path / "shards"))
    )
    process.start()
    process.join(60)
    assert process.exitcode == 9
    (left,) = tmp_path.glob(f"shards{PARTIAL}*")
    fresh = tmp_path / f"shards{PARTIAL}other"
    fresh.mkdir()
    past = time.time() - STALE_S - 60
    for path in (*left.iterdir(), left):
        os.utime(path, (past, past))
    make_shards(source, ByteTokenization(), tmp_path / "shards").verify()
    assert not left.exists() and fresh.exists()


def test_of_few_documents_one_is_held_out(tmp_path: Path) -> None:
    for count in (2, 3, 9):
        folder = tmp_path / str(count)
        folder.mkdir()
        source = write_documents(folder / "d.jsonl", [[number, 1] for number in range(1, count + 1)])
        shards = make_shards(source, NumberTokenization(), folder / "shards")
        assert (shards.train.num_documents, shards.held_out.num_documents) == (count - 1, 1)
    one = write_documents(tmp_path / "one.jsonl", [[1, 2]])
    with pytest.raises(SpecError, match="one.jsonl has 1 documents"):
        make_shards(one, NumberTokenization(), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_bad_line_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "1"}\n{"text": 2}\n')
    with pytest.raises(SpecError, match="line 2"):
        make_shards(TextSource.open(tmp_path / "bad.jsonl"), NumberTokenization(), tmp_path / "shards")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_a_maker_that_ends_while_others_look_is_no_fault(
    tmp_path: Path, source: TextSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list of folders and a look into one it was renamed."""
    (tmp_path / f"shards{PARTIAL}gone").mkdir()
    seen = shard_writer._siblings

    def ends(target: Path) -> Sequence[Path]:
        found = seen(target)
        for path in found:
            path.rmdir()
        return found

    monkeypatch.setattr(shard_writer, "_siblings", ends)
    make_shards(source, ByteTokenization(), tmp_path / "shards").verify()
