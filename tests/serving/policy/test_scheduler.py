"""The scheduler: whose turn it is, what is shared and copied, and that nothing is kept of who was ended at any moment."""

from __future__ import annotations

import pytest
from tests.serving.case import BLOCK_TOKENS, CONTINUOUS, LIMITS, check_books, drawn_load, served

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Status
from meshwright.serving.request.request import Request
from meshwright.specs.error import RequestRefused


def scheduler(policy: ContinuousBatching = CONTINUOUS, blocks: int = 40, host: int = 0) -> Scheduler:
    """Of a small engine."""
    host_pool = BlockPool(host, BLOCK_TOKENS) if host else None
    return Scheduler(policy, BlockPool(blocks, BLOCK_TOKENS), LIMITS, host_pool)


def given_out(at: Scheduler) -> Batch:
    """The next batch, which there is."""
    batch = at.next(0.0)
    assert batch is not None
    return batch


def test_prompts_fill_what_decodes_leave() -> None:
    at = scheduler()
    at.add(Request("a", 10, 5))
    at.add(Request("b", 20, 5))
    first, second, third = given_out(at), given_out(at), given_out(at)
    assert [(chunk.start, chunk.num_tokens, chunk.is_last) for chunk in first.chunks] == [
        (0, 10, True),
        (0, 6, False),
    ]
    assert [(chunk.start, chunk.num_tokens, chunk.is_last) for chunk in second.chunks] == [(6, 14, True)]
    assert (second.num_decodes, second.decode_context, second.num_tokens) == (1, 11, 15)
    assert (third.num_decodes, third.decode_context, third.chunks) == (2, 12 + 21, [])


def test_a_known_prefix_is_not_computed_again_but_for_one_token() -> None:
    at = scheduler()
    keys = ("x", "y", "z")
    at.add(Request("a", 12, 5, block_keys=keys))
    given_out(at)
    at.add(Request("b", 12, 5, block_keys=keys))
    at.add(Request("c", 9, 5, block_keys=("x", "other")))
    chunks = {chunk.sequence.request.id: chunk for chunk in given_out(at).chunks}
    assert (chunks["b"].start, chunks["b"].num_tokens, chunks["b"].sequence.num_cached) == (8, 4, 8)
    assert (chunks["c"].start, chunks["c"].num_tokens) == (4, 5)
    assert chunks["b"].sequence.blocks[:2] == next(at.sequences()).blocks[:2]
    check_books(at)


def test_a_fork_shares_full_blocks_and_copies_the_last() -> None:
    at = scheduler()
    at.add(Request("a", 10, 5, num_outputs=2))
    assert len(given_out(at).chunks) == 1
    batch = given_out(at)
    (chunk,) = batch.chunks
    parent = chunk.sequence.parent
    assert parent is not None and chunk.sequence.blocks[:2] == parent.blocks[:2]
    assert batch.copies == [(parent.blocks[2], chunk.sequence.blocks[2])]
    assert (chunk.start, chunk.num_tokens, chunk.is_last) == (9, 1, True)
    check_books(at)


def test_the_lowest_priority_that_came_last_leaves_and_comes_back() -> None:
    at = scheduler(ContinuousBatching(preemption="swap", watermark=0.0), blocks=6, host=4)
    at.add(Request("calm", 8, 12, priority=2))
    at.add(Request("urgent", 8, 12, priority=0))
    while not (batch := given_out(at)).preempted:
        check_books(at)
    assert [each.request.id for each in batch.preempted] == ["calm"]
    calm = batch.preempted[0]
    assert calm.status is Status.SWAPPED and len(batch.swap_out) == len(calm.host_blocks) == 3
    urgent = next(each for each in at.sequences() if each.request.id == "urgent")
    at.finish(urgent)
    host = list(calm.host_blocks)
    batch = given_out(at)
    assert [pair[0] for pair in batch.swap_in] == host and batch.num_decodes == 1
    assert at.host_pool is not None and at.host_pool.num_held == 0


@pytest.mark.parametrize("is_fair", [True, False])
def test_a_user_who_asks_for_little_does_not_wait_behind_one_who_asks_for_much(is_fair: bool) -> None:
    requests = [Request(f"much{i}", 12, 12, num_output_tokens=12, user="much") for i in range(20)]
    requests += [Request(f"little{i}", 4, 4, num_output_tokens=4, user="little") for i in range(3)]
    case = served(requests, ContinuousBatching(is_fair=is_fair), limits=Limits(16, 2, 64))
    ends = {record.request.id: record.end_s for record in case.log.records}
    before = sum(ends[f"much{i}"] < ends["little2"] for i in range(20))
    assert before < 8 if is_fair else before >= 19


@pytest.mark.parametrize("num_steps", range(0, 24, 3))
def test_nothing_is_kept_of_who_is_ended_at_any_moment(num_steps: int) -> None:
    requests = drawn_load(num_steps, num=12, prefixes=2, num_outputs=3)
    at = scheduler(ContinuousBatching(preemption="swap"), blocks=18, host=8)
    for request in requests:
        at.add(request)
    for _ in range(num_steps):
        at.next(0.0)
    for request in reversed(requests):
        at.abort(request.id)
        check_books(at)
    assert at.pool.num_held == 0 and not len(at.waiting) and at.next(0.0) is None
    assert at.host_pool is not None and at.host_pool.num_held == 0


def test_what_came_from_another_engine_decodes_at_once() -> None:
    at = scheduler()
    at.add(Request("a", 10, 5), is_prefilled=True)
    batch = given_out(at)
    assert (batch.num_decodes, batch.decode_context, batch.chunks, batch.swap_in) == (1, 11, [], [])


def test_refusals_say_what_is_allowed() -> None:
    at = scheduler(blocks=10)
    at.add(Request("a", 4, 4))
    for request, allowed in (
        (Request("a", 4, 4), "another id"),
        (Request("b", 60, 5), "64, the model's longest"),
        (Request("c", 30, 20), "10, which the engine has"),
    ):
        with pytest.raises(RequestRefused, match=allowed):
            at.add(request)
    assert len(at.waiting) == 1
