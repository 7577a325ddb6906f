"""What a rank sends for tensor and sequence parallelism is the closed form; a rank with whole matrices sends none."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from meshwright.executor.job.pool import Pool
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from meshwright.stage.group.value_size import num_local_parameters
from tests.beside import num_beside
from tests.covering import always
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


@pytest.mark.parametrize(("dp", "is_divided"), always([(1, False), (2, True), (1, True), (2, False)], {0, 1}))
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


@pytest.mark.parametrize("sharding", always(["none", "zero1"], {1}))
def test_terms_of_gradients_are_summed_once(sharding: str, gloo_pool: Pool) -> None:
    """Of norms, two a layer and the last; of a shard what it has of them: all ranks together as much."""
    result = planned(tp=TP, dp=2, sequence_parallel=True, sharding=sharding).run(gloo_pool, ITERATIONS)
    terms = (2 * LLAMA.num_layers + 1) * LLAMA.hidden_size * NUMBER_BYTES
    copies = 2 if sharding == "none" else 1  # along dp
    sent = [rank.get("SUM_GRAD", 0.0) for rank in result.sent_bytes]
    assert sum(sent) == pytest.approx(ITERATIONS * copies * TP * 2 * (TP - 1) / TP * terms, rel=0.01)


@pytest.mark.parametrize(
    ("sharding", "choices"),
    always([*product(("zero2", "zero3"), ({}, {"split_backward": True}, {"tp": 2}))], {0, 4, 5}),
    ids=str,
)
def test_gradients_of_every_microbatch_are_scattered(
    sharding: str, choices: dict[str, Any], gloo_pool: Pool
) -> None:
    """A rank sends its share of all its gradients once a microbatch, and gathers twice under ZeRO-3, but for what follows
    itself: the last block's backward behind its forward, and the first block of the next microbatch."""
    case = planned(dp=2, sharding=sharding, **choices)
    job, plan = case.job(ITERATIONS)
    result = case.run(gloo_pool, ITERATIONS)
    (layers,), m, share = plan.stages(), plan.num_microbatches, 1 / 2
    held = sum(num_local_parameters(plan, layers)) * NUMBER_BYTES
    for rank in result.sent_bytes:
        assert rank["SCATTER_GRAD"] == pytest.approx(ITERATIONS * m * share * held, rel=0.01)
        assert "REDUCE_GRAD" not in rank
        if sharding == "zero3":
            rows = [
                program_row.part
                for program_row in job.program.instructions(0)
                if program_row.name == "UNSHARD"
            ]
            assert len(rows) == 2 * m * plan.model.num_layers - m - (m - 1)
            assert (
                share * held * ITERATIONS * (2 * m - 2) < rank["UNSHARD"] < share * held * ITERATIONS * 2 * m
            )


# A scatter takes tens of milliseconds on such a link, a compute less than one.
SLOW = Slowing((LinkLimit(0, 1, 1.2e6, burst_bytes=0.0),))


@pytest.mark.parametrize(("sharding", "has_any"), [("zero1", False), ("zero2", True), ("zero3", True)])
def test_scatters_run_beside_computes(sharding: str, has_any: bool, gloo_pool: Pool) -> None:
    trace = planned(dp=2, sharding=sharding).run(gloo_pool, 1, slowing=SLOW).trace
    assert trace is not None
    found = [num_beside(trace, rank, name="SCATTER_GRAD") for rank in range(2)]
    assert min(found) > 0 if has_any else found == [0, 0], found
