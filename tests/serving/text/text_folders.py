"""Folders with small tokenizers of the two kinds that language models have, trained here."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

END, BEGIN, CALL = "<|end|>", "<|begin|>", "<call>"  # two special tokens, and one that is text
WORDS = [
    "the cat sat on a mat",
    "où est la tête ?",
    "日本語 text",
    "😀 smiles 😀",
    "x = [1, 2];\n\n\treturn x",
] * 3
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
SETTINGS = {"bos_token": BEGIN, "eos_token": {"content": END}, "chat_template": TEMPLATE}


def byte_level() -> Tokenizer:
    """As GPT-2's, Llama 3's and Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END, BEGIN], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(WORDS, trainer)
    return tokenizer


def with_fallback() -> Tokenizer:
    """As Llama 2's, Mistral's and Gemma's: spaces are a character of their own, bytes the last resort."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁the", "▁cat", "▁sat", "▁", "t", "h", "e", "c", "a", "s", "o", "n", "où", "語"]
    vocabulary = {word: number for number, word in enumerate(["<unk>", BEGIN, END, *fallback, *words])}
    merges = [("t", "h"), ("th", "e")]
    vocabulary |= {"th": len(vocabulary), "the": len(vocabulary) + 1}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", BEGIN, END])
    return tokenizer


KINDS = {"byte level": byte_level, "fallback": with_fallback}


def write_folder(folder: Path, kind: str, settings: dict[str, object] = SETTINGS) -> Path:
    """A folder with such a tokenizer, which puts BEGIN before every text, and its settings."""
    tokenizer = KINDS[kind]()
    tokenizer.add_tokens([AddedToken(CALL, special=False, normalized=False)])
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
