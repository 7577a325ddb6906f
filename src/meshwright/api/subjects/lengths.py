"""How long the sequences of a data set are: of token shards, or of a file of lengths."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from meshwright.specs.error import SpecError
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.sequence.length_file import ALLOWED, read_lengths

PathLike = str | os.PathLike[str]


def lengths_of(data: PathLike | LengthDistribution) -> LengthDistribution:
    """The lengths of the documents that a folder of token shards trains on, or of a file of lengths; a distribution is what
    it is. No token is read.

    Raises SpecError where there are no lengths; ExecutionError for shards that are damaged or have no document.
    """
    if isinstance(data, LengthDistribution):
        return data
    path = Path(data).expanduser()
    if is_token_folder(path):
        from meshwright.executor.data.token_shard import TokenShards

        return LengthDistribution.of(TokenShards.open(path).train.document_lengths, path.name)
    if path.is_dir() or not path.exists():
        raise SpecError(
            f"{path} is {'a folder without token shards' if path.is_dir() else 'not there'}",
            allowed=f"a folder of token shards, or a file of lengths: {ALLOWED}",
            next="shards of a text are made with `meshwright train PLAN --data TEXT --tokenizer FOLDER`",
        )
    return read_lengths(path)


def with_lengths(workload: Workload, data: PathLike | LengthDistribution) -> Workload:
    """The workload with documents of these lengths in its sequences. Raises as `lengths_of`."""
    return replace(workload, lengths=lengths_of(data).kept().pairs)


def is_token_folder(path: PathLike) -> bool:
    """Is it a folder of token shards?"""
    if not Path(path).is_dir():
        return False
    from meshwright.executor.data.token_shard import has_shards

    return has_shards(path)
