"""Tokenizers of folders: their tokens, the bytes of each, and where outputs end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.text.text_folders import BEGIN, CALL, END, KINDS, write_folder
from tokenizers import Tokenizer, decoders, models

from meshwright.serving.text.tokenizer import ByteTokenizer, FileTokenizer, decoded, tokenizer_of
from meshwright.specs.error import SpecError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("the cat où語😀 \n"), max_size=30)


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def tokenizer(folder) -> FileTokenizer:
    return FileTokenizer(folder)


@settings(max_examples=40)
@given(text=TEXTS)
def test_a_text_comes_back(tokenizer, text) -> None:
    assert decoded(tokenizer, tokenizer.encode(text)) == text


@settings(max_examples=40)
@given(text=TEXTS)
def test_tokens_and_text_are_the_librarys(folder, tokenizer, text) -> None:
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for adds_special in (False, True):
        ids = tokenizer.encode(text, adds_special)
        assert ids == library.encode(text, add_special_tokens=adds_special).ids
        assert decoded(tokenizer, ids) == library.decode(ids)


def test_special_tokens_are_no_text_and_others_are(tokenizer) -> None:
    ids = tokenizer.encode(f"cat{CALL}{END}", adds_special=False)
    assert decoded(tokenizer, ids) == f"cat{CALL}"
    special = [one for one in ids if one in tokenizer.special_ids]
    assert [tokenizer.token_bytes(one) for one in special] == [END.encode()]
    assert tokenizer.token_bytes(tokenizer.vocabulary_size + 7) == tokenizer.token_bytes(-1) == b""


def test_outputs_end_where_the_folder_says(folder, tokenizer) -> None:
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end, begin = library.token_to_id(END), library.token_to_id(BEGIN)
    assert tokenizer.end_ids == (end,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [begin, end]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert FileTokenizer(folder).end_ids == (begin, end)
    (folder / "generation_config.json").unlink()
    assert FileTokenizer(folder).end_ids == (9, end)


def test_a_model_of_bytes_needs_no_file(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 256}')
    found = tokenizer_of(tmp_path)
    assert isinstance(found, ByteTokenizer) and found.end_ids == (0,)
    assert found.encode("é") == [0xC3, 0xA9] and decoded(found, [0xC3, 0xA9, 0]) == "é"
    assert found.token_bytes(300) == found.token_bytes(-1) == b""
    (tmp_path / "config.json").unlink()  # a checkpoint of a training
    assert isinstance(tokenizer_of(tmp_path, vocabulary_size=256), ByteTokenizer)


def test_what_is_no_tokenizer_is_refused_by_name(tmp_path) -> None:
    with pytest.raises(SpecError, match=r"has no tokenizer.json; allowed: a Hugging Face folder"):
        tokenizer_of(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(SpecError, match="cannot be read"):
        tokenizer_of(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match="is no tokenizer"):
        tokenizer_of(tmp_path)
    odd = Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    odd.decoder = decoders.WordPiece()
    odd.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(SpecError, match="decodes by WordPiece; allowed: ByteLevel"):
        tokenizer_of(tmp_path)


def test_half_a_character_is_refused(tokenizer) -> None:
    for each in (tokenizer, ByteTokenizer()):
        with pytest.raises(SpecError, match="surrogate"):
            each.encode("a\ud800")
