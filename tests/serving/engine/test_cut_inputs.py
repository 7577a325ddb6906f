"""A step cut anywhere, its parts computed as steps of their own: the same logits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.executor.serving.scattered_blocks import ScatteredBlocks
from tests.serving.hash_runner import HashRunner

from meshwright.serving.engine.cut_inputs import cut_inputs

LENGTHS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4)


@given(LENGTHS, st.lists(st.integers(-1, 40), max_size=4))
def test_parts_are_the_whole(lengths: list[tuple[int, int]], cuts: list[int]) -> None:
    """Sequences of (past, new) tokens; a runner whose logits follow from all tokens of a sequence, in order."""
    logits = []
    for is_cut in (False, True):
        runner = HashRunner()
        blocks = ScatteredBlocks(runner, 3)
        past = [(str(i), [i + 1] * before) for i, (before, _) in enumerate(lengths) if before]
        if past:
            blocks.step(*past)
        work = [(str(i), list(range(new))) for i, (_, new) in enumerate(lengths)]
        inputs = blocks.inputs(work, all_rows=True)
        parts = cut_inputs(inputs, cuts, runner.block_tokens) if is_cut else [inputs]
        assert sum(len(part.token_ids) for part in parts) == len(inputs.token_ids)
        assert all(len(part.token_ids) == part.query_starts[-1] > 0 for part in parts)
        logits.append(np.concatenate([runner.forward(part) for part in parts]))
    assert (logits[0] == logits[1]).all()
    assert len(parts) == len({cut for cut in cuts if 0 < cut < len(inputs.token_ids)}) + 1
