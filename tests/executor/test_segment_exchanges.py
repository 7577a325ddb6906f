"""What a rank sends for tensor and sequence parallelism is the closed form; a rank with whole matrices sends none."""

from __future__ import annotations

import pytest

from meshwright.executor.job.pool import Pool
from tests.executor.test_layouts import planned
from tests.planned_case import BATCH, LLAMA
from tests.training_case import SEQUENCE

ITERATIONS, TP = 2, 2
NUMBER_BYTES = 8  # float64
TOKENS = BATCH * SEQUENCE
STREAM_BYTES = TOKENS * LLAMA.hidden_size * NUMBER_BYTES  # of all microbatches of an iteration
# Products that read the whole stream: two of each layer and the head; as many add to it: two of each layer and the table.
PRODUCTS = 2 * LLAMA.num_layers + 1
OF_LOSS = {"MAXIMUM": 1, "ALL_REDUCE": 2}  # numbers of a token


def sent(name: str, *, is_divided: bool) -> float:
    """Bytes that a rank sends in an iteration, on a ring: an all-reduce passes it twice, all else once."""
    share = (TP - 1) / TP
    found = 2 * share * OF_LOSS.get(name, 0) * TOKENS * NUMBER_BYTES
    # forward; with the stream divided again for the backward, and for gradients of what products give; else both ways
    times = {"ALL_GATHER": 3, "REDUCE_SCATTER": 2} if is_divided else {"ALL_REDUCE": 2 * 2}
    return found + times.get(name, 0) * PRODUCTS * share * STREAM_BYTES


@pytest.mark.parametrize("is_divided", [False, True])
@pytest.mark.parametrize("dp", [1, 2])
def test_a_rank_sends_its_share(dp: int, is_divided: bool, gloo_pool: Pool) -> None:
    case = planned(tp=TP, dp=dp, sequence_parallel=is_divided)
    result = case.run(gloo_pool, ITERATIONS)
    assert len(result.sent_bytes) == TP * dp
    names = ("MAXIMUM", "ALL_REDUCE", *(("ALL_GATHER", "REDUCE_SCATTER") if is_divided else ()))
    for rank in result.sent_bytes:
        for name in names:
            assert rank[name] == pytest.approx(
                ITERATIONS * sent(name, is_divided=is_divided) / dp, rel=0.01
            ), name
        assert not {"ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE", "MAXIMUM"} & rank.keys() - set(names)


def test_ranks_that_have_whole_matrices_send_none_of_it(gloo_pool: Pool) -> None:
    result = planned(dp=2).run(gloo_pool, ITERATIONS)
    for rank in result.sent_bytes:
        assert not {"ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE", "MAXIMUM"} & rank.keys()
