"""What a training reads: text or token shards, how text becomes tokens, and the weights to begin with."""

from __future__ import annotations

import os
from dataclasses import dataclass

from meshwright.specs.error import SpecError
from meshwright.specs.option import option

READ, SEEN = "What is read", "What is seen"
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Source:
    """What is read: text or token shards, how text becomes tokens, and the weights to begin with.

    Args:
        data: a folder or file of text, or a folder of token shards; None: the Python standard library's sources.
        tokenizer: a `tokenizers` file for text; None: that of `weights`, where the folder has one, else bytes.
        weights: a Hugging Face folder whose weights the training begins with; None: drawn by the seed.
        chat_template: a Jinja file for conversations (JSON lines of messages); None: that in the tokenizer's folder.
        evaluate_every: steps between two evaluations of the held-out loss; 0: none.
        evaluate_data: what is held out, of the kind of `data`, all of which is then trained on; None: a twentieth of `data`.
        num_evaluated: global batches of held-out text in one evaluation.
        modules: a torch.nn.Sequential that is trained instead of the plan's model, which gives its sizes: "mine.py:model".
        tensor_rules: how these modules are cut over tensor-parallel devices: redco, or "./mine.py:rules".
        text_field: field of the objects of a JSONL file that holds the text.
        whole_sequences: a sample is a document, cut at the length of a sequence, and none is packed with others.
        document_mask: documents packed into one sequence do not see each other; False: a sequence is one text.
    """

    data: PathLike | None = option(
        None, "Text, a folder or a file, or token shards (Python's own sources).", panel=READ
    )
    tokenizer: PathLike | None = option(
        None, "A `tokenizers` file for text (that of --from; bytes).", panel=READ
    )
    chat_template: PathLike | None = option(
        None, "Of conversations, a Jinja file (the tokenizer's).", panel=READ
    )
    weights: PathLike | None = option(None, "Begin with the weights of this folder.", "--from", panel=READ)
    evaluate_every: int = option(0, "Steps between held-out losses.", panel=SEEN)
    evaluate_data: PathLike | None = option(None, "What is held out (a twentieth of --data).", panel=SEEN)
    num_evaluated: int = option(4, "Global batches of each.", "--evaluate-batches", panel=SEEN)
    modules: str = option(
        "", "Train this nn.Sequential, for which the plan's model stands (FILE.py:FUNCTION).", panel=READ
    )
    tensor_rules: str = option("", "What cuts it over devices: redco, ./mine.py:NAME.", panel=READ)
    text_field: str = option("text", "Of JSON lines, what holds the text.", panel=READ)
    document_mask: bool = option(
        True, "Documents in a sequence see each other.", "--no-document-mask", panel=READ
    )
    whole_sequences: bool = False

    @property
    def name(self) -> str:
        """Of the data, for people."""
        return "the standard library" if self.data is None else os.fspath(self.data)

    def __post_init__(self) -> None:
        if self.evaluate_every < 0 or self.num_evaluated < 1:
            raise SpecError(
                f"an evaluation of {self.num_evaluated} batches every {self.evaluate_every} steps",
                allowed="a batch or more; every 0 steps is never",
            )
        if self.evaluate_data is not None and not self.evaluate_every:
            raise SpecError(
                f"{os.fspath(self.evaluate_data)} is held out, and never looked at",
                allowed="--evaluate-data with --evaluate-every",
            )
