"""Text: documents of files and lines, pieces that lose nothing, errors with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.executor.data import text_source as module
from meshwright.executor.data.text_source import HELD_OUT_SHARE, TextPiece, TextSource, hash_share
from meshwright.specs.error import SpecError


def _documents(source: TextSource) -> list[bytes]:
    """Whole documents, from pieces that begin and end as they say."""
    found: list[bytes] = []
    is_open = False
    for piece in source.pieces():
        assert piece.begins != is_open
        found = [*found, piece.data] if piece.begins else [*found[:-1], found[-1] + piece.data]
        is_open = not piece.ends
    assert not is_open
    return found


def _folder(folder: Path) -> Path:
    (folder / "b").mkdir()
    (folder / "b" / "two.md").write_text("second\n")
    (folder / "a.txt").write_text("first")
    (folder / "c.jsonl").write_text('{"text": "third", "id": 1}\n\n{"text": ""}\n{"text": "fourth\\n"}\n')
    (folder / "empty.txt").write_text("")
    (folder / "binary.txt").write_bytes(b"a\0b")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


def test_files_and_lines_are_documents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = TextSource.open(_folder(tmp_path))
    assert source.has_jsonl
    assert _documents(source) == [b"first", b"second\n", b"third", b"fourth\n"]
    assert "1 files" in caplog.text and "zero bytes" in caplog.text
    shares = [piece.share for piece in source.pieces()]
    assert shares == [hash_share(identity) for identity in ("a.txt", "b/two.md", b"third", b"fourth\n")]


@given(text=st.text(alphabet="aé\n𝄞 ", min_size=1, max_size=200), size=st.integers(4, 40))
def test_pieces_lose_nothing_and_cut_no_character(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "a.txt").write_bytes(text.encode())
    (folder / "b.txt").write_bytes(b"other")
    (folder / "c.jsonl").write_text(json.dumps({"text": text}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", size)
        source = TextSource.open(folder)
        assert _documents(source) == [text.encode(), b"other", text.encode()]
        pieces = [piece for piece in source.pieces() if piece.place.endswith("a.txt")]
        alone = _documents(TextSource.open(folder / "a.txt"))
    assert "".join(piece.data.decode() for piece in pieces) == text
    assert max(len(piece.data) for piece in pieces) <= 2 * size
    assert b"".join(alone) == text.encode()
    for document in alone:
        document.decode()


def test_one_file_alone_holds_its_last_lines_out(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    train, held_out = TextSource.open(path).pieces()
    assert train.share > HELD_OUT_SHARE > held_out.share
    assert held_out.data.startswith(b"line ") and train.data.endswith(b"\n")
    assert 0.03 < len(held_out.data) / path.stat().st_size <= HELD_OUT_SHARE


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is list"),
        ('{"body": "x"}', "line 2 is an object with body"),
        ('{"text": 3}', "'text' is a string"),
        ('{"text": "\\ud800"}', "line 2 has half of a surrogate pair"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(SpecError, match=message) as caught:
        list(TextSource.open(path).pieces())
    assert "bad.jsonl" in str(caught.value)


def test_the_field_is_the_users_choice(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n')
    assert _documents(TextSource.open(path, "body")) == [b"x"]


def test_the_digest_sees_names_sizes_times_and_field(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    digests = [TextSource.open(folder).digest]
    assert TextSource.open(folder).digest == digests[0]
    digests.append(TextSource.open(folder, "body").digest)
    (folder / "a.txt").write_text("longer")
    digests.append(TextSource.open(folder).digest)
    (folder / "a.txt").rename(folder / "z.txt")
    digests.append(TextSource.open(folder).digest)
    assert len(set(digests)) == 4


def test_what_is_not_there_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SpecError, match="there is no folder"):
        TextSource.open(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="no file of text"):
        TextSource.open(tmp_path)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    (tmp_path / "here.txt").write_text("x")
    source = TextSource.open(tmp_path)
    assert [file.name for file in source.files] == ["here.txt"] and "1 files" in caplog.text
    (tmp_path / "here.txt").unlink()
    with pytest.raises(SpecError, match="here.txt cannot be read"):
        list(source.pieces())


def test_a_piece_is_whole_unless_it_says_so() -> None:
    assert TextPiece("here", 0.5, b"x").begins and TextPiece("here", 0.5, b"x").ends
