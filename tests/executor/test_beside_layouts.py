"""A forward of one microbatch beside a backward of another, in layouts: loss, norm, every gradient and the parameters equal
one process, float64; what is sent is what was sent; all-to-alls run beside computes of the other microbatch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.executor.job.pool import Pool
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from tests.covering import always
from tests.planned_case import Planned, assert_equal_to_one_process

ITERATIONS = 2


def planned(model: str = "mixtral of 4", clip: float = 0.0, **choices: Any) -> Planned:
    """Experts over two devices, tokens beside computes of another microbatch; BATCH is 8."""
    return Planned(
        model, clip, choices={"dp": 2, "ep": 2, "microbatch_size": 1, "overlap": ("reduce", "ep")} | choices
    )


SMOKE = [
    planned(clip=0.1),
    planned("qwen moe of 4", pp=2, schedule="dualpipe_v"),
]
MORE = [
    planned(pp=2, schedule="dualpipe", clip=0.1),
    planned(pp=2, schedule="interleaved_1f1b"),
    planned(pp=2, schedule="interleaved_1f1b", sharding="zero3"),
    planned(pp=2, schedule="dualpipe_v", recompute="full", sharding="zero1"),
    planned(recompute="full"),
    planned(recompute="selective"),
    planned("qwen moe of 4", split_backward=True),
    planned(sharding="zero2"),
    planned(sharding="zero3", clip=0.1),
    planned("folded qwen moe", 0.1, tp=2, etp=1, sequence_parallel=True),
    planned("folded mixtral", 0.1, tp=2, etp=2),
    planned(cp=2, context="ring"),
    planned("folded deepseek", dispatch="once"),
    planned("folded deepseek", pp=2, schedule="dualpipe_v", clip=0.1),
    planned("mixtral of 4", dp=4, ep=4, ep_near=2),
    planned("mixtral of 4", dp=4, ep=2, sharding="zero3", recompute="full"),
    planned("qwen moe of 4", pp=2, schedule="interleaved_1f1b", recompute="selective", split_backward=True),
    planned("mixtral of 4", pp=2, schedule="dualpipe", sharding="zero2"),
    planned("gpt oss"),
]


@pytest.mark.parametrize("case", always(SMOKE, {1}), ids=str)
def test_microbatches_beside_each_other_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=str)
def test_more_layouts_of_microbatches_beside_each_other_equal_one_process(
    case: Planned, gloo_pool: Pool
) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


# An all-to-all takes tens of milliseconds on such a link, a compute about one: which are beside a compute depends on when the
# other process is ready, that they are does not.
SLOW = Slowing((LinkLimit(0, 1, 1.2e6, burst_bytes=0.0),))


def num_beside_another(trace: Trace, rank: int) -> int:
    """All-to-alls of tokens of a rank during which it computes for another microbatch."""
    program, start_s, end_s = trace.program, trace.start_s[-1], trace.end_s[-1]
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    rows = np.arange(int(program.offsets[rank]), int(program.offsets[rank + 1]))
    computes, sent = rows[program.kinds[rows] == Kind.COMPUTE], rows[names[rows] == "ROUTE"]
    both_s = np.minimum(end_s[sent][:, None], end_s[computes][None]) - np.maximum(
        start_s[sent][:, None], start_s[computes][None]
    )
    of = program.columns.microbatch
    return int(((both_s > 0.0) & (of[sent][:, None] != of[computes][None])).any(axis=1).sum())


def test_all_to_alls_run_beside_computes_of_the_other_microbatch_and_send_the_same(gloo_pool: Pool) -> None:
    """Of two microbatches there is one pair: sixteen all-to-alls of a layer each way, most of them beside the other."""
    found, sent = [], []
    for overlap in (("reduce",), ("reduce", "ep")):
        result = planned(microbatch_size=2, overlap=overlap).run(gloo_pool, 2, slowing=SLOW)
        assert result.trace is not None
        found.append(min(num_beside_another(result.trace, rank) for rank in range(2)))
        sent.append([dict(each) for each in result.sent_bytes])
    assert found[0] == 0 and found[1] >= 4, found
    assert sent[0] == sent[1] and all(each["ROUTE"] > 0 for each in sent[0])
