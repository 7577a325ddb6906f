"""Tokens of a model's text: of a local folder's tokenizer.json, or bytes, as models of bytes have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from meshwright.serving.text.token_bytes import ByteForm, byte_form, token_bytes
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
GENERATION_SETTINGS, MODEL_SETTINGS = "generation_config.json", "config.json"
NUM_BYTE_VALUES = 256
BYTE_END = 0  # what stands behind a document in training on bytes
INSTALL = "pip install 'meshwright[serve]'"


class TextTokenizer(Protocol):
    """What makes tokens of text and says what they add to one. Methods may be called from several threads.

    ``end_ids``: tokens with which the model ends an output; ``special_ids``: tokens that are no text.
    """

    vocabulary_size: int
    end_ids: tuple[int, ...]
    special_ids: frozenset[int]
    pads_front: bool  # does a text begin with a space that the tokenizer put there?

    def encode(self, text: str, adds_special: bool = True) -> list[int]:
        """Tokens; with `adds_special` those that the model expects around every text, too. Raises SpecError."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text, a special one its name; nothing, where there is no such token."""
        ...


class ByteTokenizer:
    """A token is a byte of UTF-8; byte 0 is the end."""

    vocabulary_size = NUM_BYTE_VALUES
    end_ids: tuple[int, ...] = (BYTE_END,)
    special_ids = frozenset({BYTE_END})
    pads_front = False

    def encode(self, text: str, adds_special: bool = True) -> list[int]:
        """The bytes. Raises SpecError for half a surrogate pair."""
        return list(_whole(text).encode())

    def token_bytes(self, token_id: int) -> bytes:
        """The byte."""
        return bytes([token_id]) if 0 <= token_id < NUM_BYTE_VALUES else b""


class FileTokenizer:
    """The tokens of a tokenizer.json. The characters of a special token in a text are that token: chat templates need it."""

    def __init__(self, folder: Path) -> None:
        """Of the folder's tokenizer.json and settings.

        Raises SpecError: there is none, it is no tokenizer, or it does not decode token by token.
        """
        file = folder / TOKENIZER_FILE
        self._tokenizer, fields = _read_tokenizer(file)
        form = byte_form(fields.get("decoder"), str(file))
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.pads_front = form.pads_front
        texts = {token_id: token.content.encode() for token_id, token in added.items()}
        self._bytes = _all_bytes(self._tokenizer, form, texts)
        self.vocabulary_size = len(self._bytes)
        self.end_ids = end_ids_of(folder, self._tokenizer)

    def encode(self, text: str, adds_special: bool = True) -> list[int]:
        """Tokens of a text. Raises SpecError for half a surrogate pair."""
        found = self._tokenizer.encode(_whole(text), add_special_tokens=adds_special).ids
        return list(found)

    def token_bytes(self, token_id: int) -> bytes:
        """What it adds to a text."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""


def tokenizer_of(folder: Path, vocabulary_size: int | None = None) -> TextTokenizer:
    """Of a model's folder: its tokenizer.json, or bytes where the model's vocabulary is one of bytes.

    `vocabulary_size`: of the model; None: as config.json says. Raises SpecError where it is neither.
    """
    if (folder / TOKENIZER_FILE).is_file():
        return FileTokenizer(folder)
    if (vocabulary_size or _settings(folder / MODEL_SETTINGS).get("vocab_size")) == NUM_BYTE_VALUES:
        return ByteTokenizer()
    raise SpecError(
        f"{folder} has no {TOKENIZER_FILE}",
        allowed=f"a Hugging Face folder with {TOKENIZER_FILE}, or a model of {NUM_BYTE_VALUES} bytes",
        next="copy the tokenizer's files beside the model",
    )


def end_ids_of(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that end an output: those of generation_config.json, else of config.json, and the tokenizer's own eos_token."""
    for name in (GENERATION_SETTINGS, MODEL_SETTINGS):
        said = _settings(folder / name).get("eos_token_id")
        ids = said if isinstance(said, list) else [said]
        found = [one for one in ids if isinstance(one, int)]
        if found:
            break
    token = _settings(folder / TOKENIZER_SETTINGS).get("eos_token")
    word = token.get("content") if isinstance(token, dict) else token
    own = tokenizer.token_to_id(word) if isinstance(word, str) else None
    return tuple(dict.fromkeys([*found, *([] if own is None else [own])]))


def decoded(tokenizer: TextTokenizer, token_ids: Sequence[int]) -> str:
    """The text of tokens that are a whole text, without special ones."""
    said = b"".join(tokenizer.token_bytes(one) for one in token_ids if one not in tokenizer.special_ids)
    if tokenizer.pads_front:
        said = said.removeprefix(b" ")
    return said.decode(errors="replace")


def _all_bytes(tokenizer: Tokenizer, form: ByteForm, added: dict[int, bytes]) -> list[bytes]:
    """Of every token by its number; numbers that no token has are empty."""
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    found = [b""] * (1 + max(tokens.values(), default=-1))
    for token, token_id in tokens.items():
        found[token_id] = added[token_id] if token_id in added else token_bytes(token, form)
    return found


def _read_tokenizer(file: Path) -> tuple[Tokenizer, dict[str, Any]]:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise SpecError("a tokenizer file needs the package tokenizers", next=INSTALL) from error
    try:
        content = file.read_bytes()
        fields = json_of(content)
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}", allowed=f"a {TOKENIZER_FILE}") from error
    try:
        tokenizer = Library.from_buffer(content)
    except Exception as error:  # the library raises nothing more special
        raise SpecError(
            f"{file} is no tokenizer: {error}", allowed="a file of the tokenizers library"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, fields


def _settings(path: Path) -> dict[str, Any]:
    """A file of settings; empty where there is none."""
    try:
        found = json_of(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read: {error}", allowed="a JSON object") from error
    return found if isinstance(found, dict) else {}


def _whole(text: str) -> str:
    """The same. Raises SpecError for half of a surrogate pair, which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"a text has half of a surrogate pair: {error.reason}", allowed="whole characters"
        ) from error
    return text
