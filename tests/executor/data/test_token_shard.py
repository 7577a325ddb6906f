"""Token shards: what was written is what is read, across shards; damage is found and named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.executor.token_data import shards_of

from meshwright.executor.data import shard_writer
from meshwright.executor.data.token_shard import HEADER, TokenShards, TokenSplit, has_shards
from meshwright.specs.error import ExecutionError

DOCUMENTS = [[1 + n % 97] * (1 + n % 7) for n in range(60)]
FILE = {"size_bytes": 0, "sha256": ""}
OUTSIDE = {
    "num_tokens": 0,
    "num_documents": 0,
    "tokens": {"name": "../other", **FILE},
    "starts": {"name": "s", **FILE},
}


@pytest.fixture
def shards(tmp_path: Path) -> TokenShards:
    return shards_of(tmp_path, DOCUMENTS)


def _documents(split: TokenSplit) -> list[list[int]]:
    """All documents, by the starts and the tokens."""
    tokens = split.read(0, split.num_tokens)
    starts = split.starts(0, split.num_tokens).tolist()
    return [tokens[low:high].tolist() for low, high in zip(starts, [*starts[1:], split.num_tokens])]


def test_every_document_is_in_one_split_with_its_end(shards: TokenShards) -> None:
    found = _documents(shards.train) + _documents(shards.held_out)
    expected = [[*document, 0] for document in DOCUMENTS]
    assert sorted(found) == sorted(expected)
    assert shards.train.num_documents + shards.held_out.num_documents == len(DOCUMENTS)
    assert not {tuple(d) for d in _documents(shards.held_out)} & {tuple(d) for d in _documents(shards.train)}


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=30),
    shard_tokens=st.integers(1, 40),
    data=st.data(),
)
def test_any_range_across_shards(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shard_tokens: int, data: st.DataObject
) -> None:
    documents = [[1 + i] * n for i, n in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "SHARD_TOKENS", shard_tokens)
        split = shards_of(tmp_path_factory.mktemp("shards"), documents).train
    whole = split.read(0, split.num_tokens).tolist()
    begins = [0] + [place + 1 for place, token in enumerate(whole[:-1]) if token == 0]
    first = data.draw(st.integers(0, split.num_tokens))
    count = data.draw(st.integers(0, split.num_tokens - first))
    assert split.read(first, count).tolist() == whole[first : first + count]
    assert split.starts(first, count).tolist() == [b for b in begins if first <= b < first + count]
    places = np.array([first, first + count, split.num_tokens, 0])
    assert split.num_begun(places).tolist() == [sum(b < place for b in begins) for place in places]
    assert len(split.shards) == 1 or all(shard.num_tokens >= shard_tokens for shard in split.shards[:-1])


@pytest.mark.parametrize(
    ("vocabulary_size", "dtype"), [(1 << 16, "uint16"), ((1 << 16) + 1, "uint32"), (1 << 32, "uint32")]
)
def test_the_vocabulary_chooses_the_dtype(tmp_path: Path, vocabulary_size: int, dtype: str) -> None:
    top = vocabulary_size - 1
    shards = shards_of(tmp_path, [*DOCUMENTS, [top, 1, top]], vocabulary_size)
    assert json.loads((shards.folder / HEADER).read_text())["dtype"] == dtype
    assert [top, 1, top, 0] in _documents(shards.train) + _documents(shards.held_out)


def test_a_changed_token_is_found_and_named(shards: TokenShards) -> None:
    shards.verify()
    path = shards.folder / shards.held_out.shards[0].tokens.name
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    again = TokenShards.open(shards.folder)  # the size is right
    with pytest.raises(ExecutionError, match=rf"{path.name} has SHA-256"):
        again.verify()


@pytest.mark.parametrize("damage", ["shorter", "longer", "gone"])
def test_a_wrong_size_is_found_on_opening(shards: TokenShards, damage: str) -> None:
    path = shards.folder / shards.train.shards[0].starts.name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-8] if damage == "shorter" else content + b"\0" * 8)
    with pytest.raises(ExecutionError, match=path.name):
        TokenShards.open(shards.folder)


def test_a_file_that_goes_while_it_is_verified_is_named(shards: TokenShards) -> None:
    path = shards.folder / shards.train.shards[0].tokens.name
    path.unlink()
    with pytest.raises(ExecutionError, match=f"{path.name} cannot be read"):
        shards.verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "has schema 99"),
        ({"kind": "other"}, "no header of token shards"),
        ({"dtype": "int8"}, "KeyError"),
        ({"splits": {}}, "KeyError"),
        ({"splits": {"train": {"shards": [OUTSIDE]}}}, "names the file '../other'"),
    ],
)
def test_headers_that_cannot_be_read(shards: TokenShards, change: dict[str, object], message: str) -> None:
    path = shards.folder / HEADER
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ExecutionError, match=message):
        TokenShards.open(shards.folder)


def test_a_folder_without_shards(tmp_path: Path, shards: TokenShards) -> None:
    assert has_shards(shards.folder) and not has_shards(tmp_path)
    with pytest.raises(ExecutionError, match="no token shards"):
        TokenShards.open(tmp_path)
    (shards.folder / HEADER).write_text("{")
    with pytest.raises(ExecutionError, match="is not JSON"):
        TokenShards.open(shards.folder)
