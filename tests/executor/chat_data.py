"""Small conversations, a small tokenizer with a chat template, and what `transformers` makes of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

Conversation = Sequence[Mapping[str, str]]
BEGIN, END, STOP = "<|begin|>", "<|end|>", "<|endoftext|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|begin|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|begin|>assistant\n' }}{% endif %}"
)
# The same text; what the assistant says, and the end of its turn, are marked.
MARKED = (
    "{{ bos_token }}{% for message in messages %}{{ '<|begin|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|begin|>assistant\n' }}{% endif %}"
)
WORDS = "the cat sat on a mat and the dog ate où is it here no yes".split()


def write_chat_tokenizer(folder: Path, template: str = TEMPLATE) -> Path:
    """A folder with a byte-level BPE tokenizer that trims offsets, as published ones do, and a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[STOP, BEGIN, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([" ".join(WORDS), "user assistant system"] * 4, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": STOP, "eos_token": {"content": STOP}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def theirs(folder: Path, template: str) -> PreTrainedTokenizerFast:
    """The same tokenizer as transformers has it."""
    found = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token=STOP, eos_token=STOP
    )
    found.chat_template = template
    return found


def conversation(number: int) -> list[dict[str, str]]:
    """One to three turns of a question and an answer, each of its own length; some with words of the system before."""
    messages = [{"role": "system", "content": "yes\nno"}] * (number % 4 == 1)
    for turn in range(1 + number % 3):
        for role, length in (("user", 1 + (number + turn) % 5), ("assistant", 1 + (number * 7 + turn) % 6)):
            first = number * 3 + turn
            messages = [
                *messages,
                {"role": role, "content": " ".join(WORDS[(first + n) % len(WORDS)] for n in range(length))},
            ]
    return messages


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_chats(path: Path, numbers: Sequence[int]) -> Path:
    """A file of conversations."""
    return write_lines(path, [{"messages": conversation(number)} for number in numbers])


def tokens_by_transformers(folder: Path, messages: Conversation) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them the assistant says, by transformers' own count of MARKED."""
    found: Any = theirs(folder, MARKED).apply_chat_template(
        list(messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return list(found["input_ids"]), [bool(one) for one in found["assistant_masks"]]
