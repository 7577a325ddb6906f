"""Sequences cut into chunks, in layouts: loss, norm, every gradient and the parameters equal one process, float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from meshwright.executor.capability import check_plan
from meshwright.executor.job.pool import Pool
from meshwright.executor.training.training_job import RANDOM
from meshwright.specs.error import PlanError
from meshwright.specs.plan.token_part import TokenParts
from meshwright.stage.mesh import device_order
from tests.beside import num_beside
from tests.covering import always, covering, product, slow_cases
from tests.executor.test_part_layouts import SLOW
from tests.executor.test_rank_flops import of_pairs, of_products
from tests.executor.test_segment_exchanges import TP, sent
from tests.planned_case import LLAMA, Planned, assert_equal_to_one_process, legal
from tests.training_case import SEQUENCE, largest_difference

ITERATIONS = 2


def chunks(token_parts: TokenParts, model: str = "llama", clip: float = 0.0, **choices: Any) -> Planned:
    """A layout by its choices; BATCH is 8, and sequences have 8 tokens."""
    choices = {"token_parts": token_parts, "parts_of": "sequence", **choices}
    return Planned(model, clip, choices=choices)


SMOKE = [
    chunks("1:2:1", "gpt", tp=2, dp=2, microbatch_size=2, sharding="zero3", recompute="full"),
    chunks(2, "tied", 0.1, pp=2, tp=2, sequence_parallel=True, microbatch_size=2, split_backward=True),
    chunks("1:3", pp=2, dp=2, schedule="zbv", sharding="zero1", model="deep"),
]
MORE = [
    chunks("3:1", dp=4, sharding="zero3", sharding_degree=2, split_backward=True),
    chunks(4, "gpt", pp=2, schedule="zb_h1"),
    chunks(2, "qwen", tp=2, microbatch_size=2, recompute="selective_op"),
    chunks("1:3", "ladder", tp=2, sequence_parallel=False, recompute="selective"),
    chunks(2, "latent", tp=2, sequence_parallel=True, microbatch_size=2, recompute="selective"),
    chunks(2, "deepseek", pp=2),
    chunks("3:1", "mixtral of 4", dp=2, ep=2),
    chunks(2, "qwen moe of 4", dp=2, tp=2, ep=2),
    chunks(2, "tied", dp=2, passes=("canonical_reduction",)),
    chunks(2, "gpt", pp=2, tp=2, schedule="interleaved_1f1b"),
    chunks("1:3", tp=2, sequence_parallel=True, gathered="kept"),
    chunks(8, tp=2),
]


@pytest.mark.parametrize("case", always(SMOKE, {1}), ids=str)
def test_layouts_of_chunks_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=str)
def test_more_layouts_of_chunks_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


def covering_set(*degrees: tuple[int, int, int], together: Literal[1, 2] = 2) -> list[Planned]:
    """Every pair of choices that is legal, of these degrees (pp, dp, tp), or every choice (`together` 1)."""
    factors = {
        "degrees": degrees,
        "token_parts": (2, "1:3", "1:2:1"),
        "sequence_parallel": (False, True),
        "sharding": ("none", "zero1", "zero2", "zero3"),
        "split_backward": (False, True),
        "recompute": ("none", "selective", "full"),
        "model": ("tied", "gpt", "latent"),
    }
    rows, cases = [], []
    for row in product(factors):
        pp, dp, tp = row["degrees"]
        if (tp == 1 and row["sequence_parallel"]) or (dp == 1 and row["sharding"] != "none"):
            continue
        choices = {name: row[name] for name in row if name not in ("degrees", "model", "token_parts")}
        rows.append(row)
        cases.append(chunks(row["token_parts"], row["model"], 0.1 * (pp > 1), pp=pp, dp=dp, tp=tp, **choices))
    return legal(cases[i] for i in covering(rows, together))


ON_TWO = ((1, 1, 2), (1, 2, 1), (2, 1, 1))
ON_FOUR = ((1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 2))


@pytest.mark.parametrize("case", covering_set(*ON_TWO, together=1), ids=str)
def test_every_choice_with_chunks_on_two_processes(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(lambda: covering_set(*ON_TWO)), ids=str)
def test_a_covering_set_of_chunks_on_two_processes(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(lambda: covering_set(*ON_FOUR)), ids=str)
def test_a_covering_set_of_chunks_on_four_processes(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize("token_parts", [2, pytest.param("1:3", marks=pytest.mark.slow)])
def test_a_rank_attends_to_what_its_tokens_see(token_parts: TokenParts, gloo_pool: Pool) -> None:
    """Rectangles with the keys before a chunk and a triangle with its own: of the whole sequence nothing more."""
    job, plan = chunks(token_parts, tp=TP).job(1)
    pairs = SEQUENCE * (SEQUENCE + 1) / 2
    for rank in gloo_pool.run(replace(job, counts_flops=True), places=device_order(plan)).flops:
        assert rank["attention"] == of_pairs(LLAMA, pairs, TP)
        assert rank["products"] == pytest.approx(of_products(LLAMA, tp=TP, num_replicas=1), rel=0.01)


@pytest.mark.parametrize("is_divided", always([False, True], {1}))
def test_a_rank_sends_what_it_does_of_whole_sequences(is_divided: bool, gloo_pool: Pool) -> None:
    """Keys and values of earlier chunks are here: what devices exchange is not more."""
    result = chunks(2, tp=TP, sequence_parallel=is_divided).run(gloo_pool, 1)
    names = ("MAXIMUM", "ALL_REDUCE", *(("ALL_GATHER", "REDUCE_SCATTER") if is_divided else ()))
    for rank in result.sent_bytes:
        found = {name: rank.get(name) for name in names}
        assert found == {name: pytest.approx(sent(name, is_divided=is_divided), rel=0.01) for name in names}
        assert not {"ALL_GATHER", "REDUCE_SCATTER", "SEND_BLOCK"} & rank.keys() - set(names)


@pytest.mark.parametrize("token_parts", [1, 2])
def test_sums_run_beside_computes_of_another_chunk_alone(token_parts: int, gloo_pool: Pool) -> None:
    """One microbatch; on a slow link a sum takes far longer than a compute."""
    trace = chunks(token_parts, tp=2, microbatch_size=8).run(gloo_pool, 1, slowing=SLOW).trace
    assert trace is not None
    found = [num_beside(trace, rank) for rank in range(2)]
    assert found == [0, 0] if token_parts == 1 else min(found) > 0, found


@pytest.mark.slow
def test_chunks_know_the_draws_and_the_held_out_loss_of_whole_sequences(gloo_pool: Pool) -> None:
    source = replace(RANDOM, evaluate_every=1, num_evaluated=1)
    layouts = ({}, {"tp": 2, "sequence_parallel": True, "token_parts": 2}, {"pp": 2, "token_parts": "1:3"})
    first, *others = [
        Planned("gpt", dropout=0.3, choices={"microbatch_size": 2, "parts_of": "sequence", **choices}).run(
            gloo_pool, ITERATIONS, source=source
        )
        for choices in layouts
    ]
    for other in others:
        assert other.losses == pytest.approx(first.losses, rel=1e-10)
        assert largest_difference(other.gradients[0], first.gradients[0]) < 1e-10
        for ours, theirs in zip(other.iterations, first.iterations, strict=True):
            assert ours.held_out_loss == pytest.approx(theirs.held_out_loss, rel=1e-8)


def test_chunks_that_tensor_parallel_devices_cannot_divide_are_refused() -> None:
    plan = chunks("1:3:4", tp=2, sequence_parallel=True).plan()
    with pytest.raises(PlanError, match="tp=2 with 1 tokens of a sequence on a device, tp=2 with 3 tokens"):
        check_plan(plan)
