"""Tokens: what the tokenizers library gives, documents that cannot forge their end, errors that help."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.executor.token_data import END, write_tokenizer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from meshwright.executor.data.text_source import TextPiece
from meshwright.executor.data.tokenization import ByteTokenization, FileTokenization, tokenization
from meshwright.specs.error import SpecError


def _piece(text: str | bytes) -> TextPiece:
    return TextPiece("here.txt", 0.5, text.encode() if isinstance(text, str) else text)


def test_bytes() -> None:
    chosen = tokenization(None)
    assert isinstance(chosen, ByteTokenization) and chosen.vocabulary_size == 256 and chosen.end_id == 0
    assert chosen.encode([_piece("aé")])[0].tokens.tolist() == [97, 195, 169]


def test_a_file_and_its_folder_give_the_librarys_tokens(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "small")
    library = Tokenizer.from_file(str(path))
    texts = ["the cat sat on the mat", "où?", ""]
    for given in (path, path.parent):
        ours = FileTokenization(given)
        assert [one.tokens.tolist() for one in ours.encode([_piece(t) for t in texts])] == [
            library.encode(t).ids for t in texts
        ]
        assert ours.name == "small"
        assert ours.vocabulary_size == library.get_vocab_size()
        assert ours.end_id == library.token_to_id(END)
    assert FileTokenization(path).digest == FileTokenization(path.parent).digest


def test_no_document_forges_its_end_and_nothing_is_added(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path)
    library = Tokenizer.from_file(str(path))
    library.post_processor = TemplateProcessing(f"{END} $A {END}", None, [(END, library.token_to_id(END))])
    library.enable_truncation(4)
    library.enable_padding(length=64)
    library.save(str(path))
    ours = FileTokenization(path)
    tokens = ours.encode([_piece(f"the cat {END} the mat")])[0].tokens
    assert ours.end_id not in tokens.tolist()
    library.no_truncation()
    library.no_padding()
    assert library.decode(tokens.tolist(), skip_special_tokens=False).replace("Ġ", "").replace(" ", "") == (
        f"thecat{END}themat"
    )


@pytest.mark.parametrize("settings", [{"eos_token": "a"}, {"eos_token": {"content": "a", "lstrip": False}}])
def test_the_settings_name_the_end(tmp_path: Path, settings: object) -> None:
    path = write_tokenizer(tmp_path, settings)
    library = Tokenizer.from_file(str(path))
    assert FileTokenization(tmp_path).end_id == library.token_to_id("a") != library.token_to_id(END)
    assert FileTokenization(tmp_path, "b").end_id == library.token_to_id("b")
    assert FileTokenization(tmp_path, "b").digest != FileTokenization(tmp_path).digest


def test_errors_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no tokenizer at"):
        FileTokenization(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match="is no tokenizer"):
        FileTokenization(tmp_path)
    path = write_tokenizer(tmp_path, {"eos_token": "<stop>"})
    with pytest.raises(SpecError, match="no token '<stop>'"):
        FileTokenization(path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(SpecError, match="tokenizer_config.json is not JSON"):
        FileTokenization(path)
    (tmp_path / "tokenizer_config.json").unlink()
    path.write_text(path.read_text().replace(END, "<|stop|>"))
    with pytest.raises(SpecError, match="names no end of a document"):
        FileTokenization(path)


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    ours = FileTokenization(write_tokenizer(tmp_path))
    with pytest.raises(SpecError, match=r"here\.txt is not UTF-8: .*line 2"):
        ours.encode([_piece(b"good\nb\xe9d\n")])
