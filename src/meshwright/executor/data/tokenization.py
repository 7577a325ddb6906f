"""Text to tokens: by a `tokenizers` file, or byte by byte.

A tokenizer is a tokenizer.json, or a Hugging Face folder that holds one. Text is text: the characters of a special token in
it ("<|endoftext|>") are encoded like others, so that no document can forge its end. No tokens are put before or behind it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from meshwright.executor.data.text_source import TextPiece
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.training.source import PathLike

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokens = npt.NDArray[np.uint32]
Answers = npt.NDArray[np.bool_]

NUM_BYTE_VALUES = 256
BYTE_END = 0  # source text has no zero bytes, so a document's end can be learned without another token
TOKENIZER_FILE, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
# Names by which published tokenizers call the end of a text, used where tokenizer_config.json does not say.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]")


class EncodedPiece(NamedTuple):
    """Tokens of a piece. ``answers``: which of them a model shall learn to say, of a whole document that has its own end;
    None: all of them. ``left_out``: why a document has none, in words for people."""

    tokens: Tokens = np.empty(0, np.uint32)
    answers: Answers | None = None
    left_out: str = ""


class Tokenization(Protocol):
    """What makes tokens of text. ``end_id`` stands behind every document that has not its own end; ids are below
    `vocabulary_size`; two with the same `digest` give the same tokens.
    """

    name: str
    digest: str
    vocabulary_size: int
    end_id: int

    def encode(self, pieces: Sequence[TextPiece]) -> list[EncodedPiece]:
        """The tokens of every piece."""


class ByteTokenization:
    """A token is a byte of UTF-8; the end of a document is byte 0."""

    name = "bytes"
    digest = f"bytes ended by {BYTE_END}"
    vocabulary_size = NUM_BYTE_VALUES
    end_id = BYTE_END

    def encode(self, pieces: Sequence[TextPiece]) -> list[EncodedPiece]:
        """The bytes of every piece."""
        return [EncodedPiece(np.frombuffer(piece.data, np.uint8).astype(np.uint32)) for piece in pieces]


class FileTokenization:
    """The tokens of a tokenizer.json (a file of the `tokenizers` library)."""

    def __init__(self, path: PathLike, end_token: str | None = None) -> None:
        """Read a tokenizer.json or the folder that holds one.

        Args:
            end_token: what ends a document; None: as the folder's tokenizer_config.json says, else a usual name.

        Raises SpecError: there is no such file, it is no tokenizer, or it has no token for a document's end.
        """
        given = Path(path)
        file = given / TOKENIZER_FILE if given.is_dir() else given
        content = _content(file)
        self.name = (
            given.name if given.is_dir() or given.name != TOKENIZER_FILE else given.resolve().parent.name
        )
        self._tokenizer = _load(file, content)
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        self.end_id = _end_id(self._tokenizer, file, end_token)
        told = hashlib.blake2b(content, digest_size=16)
        told.update(f"ended by {self.end_id}".encode())
        self.digest = told.hexdigest()

    def encode(self, pieces: Sequence[TextPiece]) -> list[EncodedPiece]:
        """The tokens of every piece, on all cores. Raises SpecError for bytes that are not UTF-8."""
        texts = [_decoded(piece) for piece in pieces]
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [EncodedPiece(np.asarray(one.ids, dtype=np.uint32)) for one in encoded]


def tokenization(tokenizer: PathLike | None) -> Tokenization:
    """By bytes where no tokenizer is named, else by its file. Raises SpecError as `FileTokenization`."""
    return ByteTokenization() if tokenizer is None else FileTokenization(tokenizer)


def plain_tokenizer(file: Path) -> Tokenizer:
    """The library's tokenizer without what it puts around a text, and with every character in the offsets of a token."""
    content = _content(file)
    try:
        fields = {**json_of(content), "post_processor": None}
    except (ValueError, TypeError):
        fields = {}  # no tokenizer, as the library says
    return _load(file, json.dumps(fields).encode())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SpecError(
            f"no tokenizer at {file}: {error.strerror}",
            allowed=f"a {TOKENIZER_FILE}, or a Hugging Face folder that holds one",
        ) from error


def _load(file: Path, content: bytes) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SpecError(
            "a tokenizer file needs the package tokenizers", next="pip install 'meshwright[torch]'"
        ) from error
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing more special
        raise SpecError(
            f"{file} is no tokenizer: {error}", allowed="a file of the tokenizers library"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _end_id(tokenizer: Tokenizer, file: Path, end_token: str | None) -> int:
    """The id of the document's end: what was asked for, what the settings say, or a usual name."""
    said = end_token if end_token is not None else _end_in_settings(file.parent / TOKENIZER_SETTINGS)
    for name in END_TOKENS if said is None else (said,):
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    raise SpecError(
        f"the tokenizer {file} has no token {said!r}"
        if said
        else f"the tokenizer {file} names no end of a document",
        allowed=f"a token of its vocabulary; without a name one of {', '.join(END_TOKENS)}",
        next=f"name it as eos_token in {TOKENIZER_SETTINGS} beside the tokenizer",
    )


def _end_in_settings(path: Path) -> str | None:
    """`eos_token` of a tokenizer_config.json: a string, or an object with the string as content."""
    if not path.is_file():
        return None
    try:
        settings: Any = json_of(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpecError(f"{path} is not JSON: {error}") from error
    token = settings.get("eos_token") if isinstance(settings, dict) else None
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _decoded(piece: TextPiece) -> str:
    try:
        return piece.data.decode()
    except UnicodeDecodeError as error:
        line = piece.data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{piece.place} is not UTF-8: {error.reason}, {'' if piece.begins else 'in a later part, '}line {line}",
            allowed="text in UTF-8",
            next="convert the file, or take it out of the folder",
        ) from error
