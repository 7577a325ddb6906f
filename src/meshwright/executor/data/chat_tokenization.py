"""Conversations and pairs of prompt and completion as tokens, with the tokens that a model shall learn to say.

A line of a JSONL file is {"messages": [{"role": .., "content": ..}, ..]}, written as the tokenizer's chat template says, or
{"prompt": .., "completion": ..}, which is read as it stands, with the end of a document behind it. Learned are the
assistant's words, and the completion with its end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshwright.executor.data.chat_template import MARKS, AnswerSpan, ChatTemplate, Message, RenderedChat
from meshwright.executor.data.text_source import TextPiece
from meshwright.executor.data.tokenization import (
    TOKENIZER_FILE,
    EncodedPiece,
    FileTokenization,
    plain_tokenizer,
)
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.training.source import PathLike

if TYPE_CHECKING:
    from tokenizers import Encoding

MESSAGES, PROMPT, COMPLETION = "messages", "prompt", "completion"
# Why an example is left out, in words for people.
NO_ANSWER, FORGED = "without an answer", "with the characters of a special token in what is said"
ALLOWED = f'{{"{MESSAGES}": [{{"role": .., "content": ..}}, ..]}} or {{"{PROMPT}": .., "{COMPLETION}": ..}}'


class Example(NamedTuple):
    """A line as text: of a conversation (`is_chat`) with special tokens in it, else without; `left_out`: why, or ""."""

    chat: RenderedChat
    is_chat: bool
    left_out: str = ""


class ChatTokenization:
    """Tokens of a tokenizer.json and a chat template; `ends` of documents are the template's own."""

    def __init__(self, tokenizer: PathLike, template: PathLike | None = None) -> None:
        """`tokenizer`: a tokenizer.json or its folder. `template`: a file; None: that of the folder, if one is needed.

        Raises SpecError as `FileTokenization`, and where `template` cannot be read.
        """
        plain = FileTokenization(tokenizer)
        given = Path(tokenizer)
        self._folder = given if given.is_dir() else given.parent
        self._file = None if template is None else Path(template)
        self._tokenizer = plain_tokenizer(given / TOKENIZER_FILE if given.is_dir() else given)
        self._special = [
            token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special
        ]
        self.name, self.vocabulary_size, self.end_id = plain.name, plain.vocabulary_size, plain.end_id
        self._template = self._found_template()
        self.digest = _digest(plain.digest, self._template)

    def encode(self, pieces: Sequence[TextPiece]) -> list[EncodedPiece]:
        """Tokens of every line and which of them are learned; none of a line that is left out. Raises SpecError."""
        examples = [_whole(self._example(piece), piece.place) for piece in pieces]
        found: list[EncodedPiece] = [EncodedPiece(left_out=one.left_out) for one in examples]
        for is_chat in (True, False):
            chosen = [n for n, one in enumerate(examples) if one.is_chat == is_chat and not one.left_out]
            self._tokenizer.encode_special_tokens = not is_chat
            encoded = self._tokenizer.encode_batch(
                [examples[n].chat.text for n in chosen], add_special_tokens=False
            )
            for n, one in zip(chosen, encoded, strict=True):
                found[n] = self._learned(one, examples[n])
        return found

    def _found_template(self) -> ChatTemplate | None:
        """The folder's template, where there is one; one that is named has to be there."""
        try:
            return ChatTemplate.of_folder(self._folder, self._file)
        except SpecError:
            if self._file is not None:
                raise
            return None

    def _learned(self, encoding: Encoding, example: Example) -> EncodedPiece:
        """The tokens of an example; those that have a character of an answer are learned, but the first, which nothing is
        before."""
        tokens = np.asarray(encoding.ids, dtype=np.uint32)
        places = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        answers = np.zeros(len(tokens), dtype=bool)
        for begin, end in example.chat.answers:
            answers |= (places[:, 0] < end) & (places[:, 1] > begin)
        if not example.is_chat:
            tokens, answers = np.append(tokens, np.uint32(self.end_id)), np.append(answers, True)
        answers[:1] = False
        return EncodedPiece(tokens, answers) if answers.any() else EncodedPiece(left_out=NO_ANSWER)

    def _example(self, piece: TextPiece) -> Example:
        entry = _object(piece)
        if isinstance(entry.get(MESSAGES), list):
            return self._conversation(entry, piece.place)
        prompt, completion = entry.get(PROMPT), entry.get(COMPLETION)
        if isinstance(prompt, list) and isinstance(completion, list):
            return self._conversation({**entry, MESSAGES: [*prompt, *completion]}, piece.place)
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise SpecError(
                f"{piece.place} has the fields {', '.join(sorted(entry)) or 'none'}",
                allowed=ALLOWED,
                next="mend the line, or take it out",
            )
        chat = RenderedChat(prompt + completion, (AnswerSpan(len(prompt), len(prompt) + len(completion)),))
        return Example(chat, is_chat=False, left_out="" if completion else NO_ANSWER)

    def _conversation(self, entry: Mapping[str, Any], place: str) -> Example:
        messages, tools = _messages(entry[MESSAGES], place), entry.get("tools")
        nothing = RenderedChat("", ())
        said = list(_texts([messages, tools]))
        if any(word in text for text in said for word in (*self._special, *MARKS)):
            return Example(nothing, is_chat=True, left_out=FORGED)
        template = self._template or ChatTemplate.of_folder(self._folder, self._file)  # raises: there is none
        chat = template.rendered(messages, tools, place)
        has_answer = any(one.end > one.begin for one in chat.answers)
        return Example(chat, is_chat=True, left_out="" if has_answer else NO_ANSWER)


def is_chat(line: bytes, text_field: str) -> bool:
    """Is a line of JSON a conversation or a pair, and has it no text?"""
    try:
        entry = json_of(line)
    except ValueError:
        return False
    if not isinstance(entry, dict) or text_field in entry:
        return False
    return MESSAGES in entry or {PROMPT, COMPLETION} <= entry.keys()


def _digest(tokenizer: str, template: ChatTemplate | None) -> str:
    """Of all that decides about tokens."""
    told = [tokenizer, None if template is None else [template.text, template.words]]
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()


def _whole(example: Example, place: str) -> Example:
    """The same. Raises SpecError for half of a surrogate pair, which no tokenizer reads."""
    try:
        example.chat.text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{place} has half of a surrogate pair: {error.reason}", allowed="whole characters"
        ) from error
    return example


def _object(piece: TextPiece) -> Mapping[str, Any]:
    """The line. Raises SpecError where it is no object."""
    try:
        entry = json_of(piece.data)
    except ValueError as error:
        raise SpecError(f"{piece.place} is not JSON: {error}", allowed="one JSON object a line") from error
    if not isinstance(entry, dict):
        raise SpecError(f"{piece.place} is {type(entry).__name__}", allowed=ALLOWED)
    return entry


def _messages(found: Sequence[Any], place: str) -> Sequence[Message]:
    """Messages with a role each. Raises SpecError."""
    for number, message in enumerate(found, 1):
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise SpecError(
                f"{place}: message {number} has no role",
                allowed=ALLOWED,
                next="mend the line, or take it out",
            )
    return found


def _texts(value: Any) -> Iterator[str]:
    """All strings of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)
