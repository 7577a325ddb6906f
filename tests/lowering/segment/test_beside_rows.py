"""Microbatches beside each other as rows: their order, what stays as it was, the rate of pipelines, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.beside import num_beside
from tests.golden.text import check_golden
from tests.ir.mutation import check_refused
from tests.lowering.plans import plan
from tests.specs.configs import QWEN3_MOE

import meshwright.api  # noqa: F401  # how many chunks a schedule has is asked above specs
from meshwright.costs.cost import Cost, Flow
from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Work
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.lower import lower
from meshwright.lowering.order import with_works
from meshwright.schedules import registered
from meshwright.schedules.order import Pairs
from meshwright.simulator.simulate import simulate_program
from meshwright.specs import ModelSpec, model_from_config
from meshwright.specs.error import DeadlockError, PlanError


def experts(num_layers: int) -> ModelSpec:
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "intermediate_size": 96,
    }
    return model_from_config({**QWEN3_MOE, "num_hidden_layers": num_layers, "vocab_size": 96, **sizes})


TWO, EIGHT = experts(2), experts(8)
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"recompute": "full"},
    {"recompute": "selective"},
    {"split_backward": True},
    {"sharding": "zero3"},
    {"tp": 2, "sequence_parallel": True},
    {"cp": 2, "context": "ring"},
    {"dispatch": "once"},
    {"pp": 2, "schedule": "dualpipe_v"},
    {"pp": 2, "schedule": "dualpipe"},
    {"pp": 2, "schedule": "interleaved_1f1b"},
]
PIPELINES = ["dualpipe_v", "dualpipe", "interleaved_1f1b"]


def paired(
    *, is_beside: bool = True, pairs: Pairs | None = None, step: bool = True, **choices: Any
) -> Program:
    """Experts over two devices; `pairs`: other neighbours than the schedule's."""
    model = EIGHT if choices.get("pp", 1) > 1 else TWO
    overlap = ("reduce", "ep") if is_beside else ("reduce",)
    chosen = plan(choices.pop("model", model), **{"dp": 2, "ep": 2, "overlap": overlap, **choices})
    schedule = registered()[chosen.schedule]
    schedule = schedule if pairs is None else replace(schedule, pairs=pairs)
    return lower(chosen, schedule, in_segments=True, step=step)


class Sent:
    """An all-to-all takes so many seconds, a forward of a segment one, its backward two; all else nothing."""

    def __init__(self, all_to_all_s: float) -> None:
        self.all_to_all_s = all_to_all_s

    def cost(self, work: Work, device: Any = None) -> Cost:
        return Cost({"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}.get(work.name, 0.0))

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        is_sent = exchange.algorithm == "all_to_all"
        return Cost(self.all_to_all_s if is_sent else 0.0, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        return ()


def span_s(all_to_all_s: float, *, is_beside: bool, **choices: Any) -> float:
    costs = Sent(all_to_all_s)
    program = paired(is_beside=is_beside, step=False, **choices)
    return float(simulate_program(program, costs, costs).end_s.max())


def test_a_backward_and_the_forward_behind_it_take_turns_at_every_exchange() -> None:
    texts = [row.text for row in paired(batch=6).instructions(0)]
    begin = texts.index("4B0")
    assert texts[:begin] == [
        "0F0",
        "0COUNTS0",
        "0ROUTE0",
        "1F0",
        "1ROUTE0",
        "2F0",
        "2COUNTS0",
        "2ROUTE0",
        "3F0",
        "3ROUTE0",
        "4F0",
    ]
    assert texts[begin : begin + 11] == [
        "4B0", "3ROUTE0", "0F1", "0COUNTS1", "0ROUTE1", "3B0", "2ROUTE0", "1F1", "1ROUTE1", "2B0", "1ROUTE0",
    ]  # fmt: skip
    # the last backward has no forward behind it
    assert texts[texts.index("4B2") :][:5] == ["4B2", "3ROUTE2", "3B2", "2ROUTE2", "2B2"]


def test_weight_gradients_stand_behind_what_their_segment_sent() -> None:
    texts = [row.text for row in paired(pp=2, schedule="dualpipe_v", batch=16).instructions(1)]
    sent = [place for place, text in enumerate(texts) if "ROUTE" in text and "W" in texts[place + 1]]
    assert len(sent) > 8


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_programs_are_whole_and_make_what_they_made(layout: dict[str, Any]) -> None:
    found, plain = paired(**layout), paired(is_beside=False, **layout)
    for host in ("asynchronous", "in_order"):
        verify(found, host=host)
    assert outputs(found) == outputs(plain)
    assert sorted(row.text for row in found.instructions(0)) == sorted(
        row.text for row in plain.instructions(0)
    )
    assert [row.text for row in found.instructions(0)] != [row.text for row in plain.instructions(0)]


def test_golden() -> None:
    program = paired(batch=4)
    program = with_works(program.with_tables(value_bytes=()), {})
    text = to_text(program)
    check_golden("segments_experts_beside", text)
    assert from_text(text).digest() == program.digest()


@pytest.mark.parametrize("host", ["asynchronous", "in_order"])
def test_all_to_alls_run_beside_computes(host: str) -> None:
    found = []
    for is_beside in (False, True):
        program, costs = paired(is_beside=is_beside).expand("dp"), Sent(0.5)
        trace = simulate_program(program, costs, costs, host=host)
        found.append(min(num_beside(trace, device, name="ROUTE") for device in range(program.num_lists)))
    # eight of each microbatch, but for the first forward's and the last backward's
    assert found == [0, 4 * 8 - 8]


@pytest.mark.parametrize("schedule", PIPELINES)
def test_a_pipeline_of_pairs_keeps_its_rate_and_hides_what_it_sends(schedule: str) -> None:
    job = {"schedule": schedule, "pp": 4, "batch": 32}
    bare = span_s(0.0, is_beside=True, **job) / span_s(0.0, is_beside=False, **job)
    assert 1.0 <= bare < 1.04  # fills and drains are a little longer at most
    assert span_s(0.5, is_beside=True, **job) / span_s(0.5, is_beside=False, **job) < 0.9


def test_pairs_of_1f1b_would_be_slower_than_what_they_hide() -> None:
    job = {"pp": 4, "batch": 32, "pairs": "backward first"}
    assert span_s(0.0, is_beside=True, **job) > 1.5 * span_s(0.0, is_beside=False, **job)
    assert span_s(0.5, is_beside=True, **job) > span_s(0.5, is_beside=False, **job)


def test_one_stage_hides_all_but_the_ends() -> None:
    job = {"batch": 16}
    sent_s = span_s(0.5, is_beside=False, **job) - span_s(0.0, is_beside=False, **job)
    left_s = span_s(0.5, is_beside=True, **job) - span_s(0.0, is_beside=True, **job)
    assert left_s == pytest.approx(sent_s / 8)  # of eight microbatches


def test_neighbours_that_wait_for_each_other_are_a_deadlock() -> None:
    with pytest.raises(DeadlockError):
        verify(paired(pp=4, schedule="v_1f1b", pairs="backward first"))


@pytest.mark.parametrize("fault", ["drop", "retag", "restream"])
def test_a_program_with_a_fault_is_refused(fault: str) -> None:
    check_refused(fault, paired(batch=4))


def test_without_experts_on_several_devices_nothing_changes() -> None:
    plain, named = (paired(is_beside=is_beside, ep=1, sharding="zero2") for is_beside in (False, True))
    assert plain.digest() == named.digest()


@pytest.mark.parametrize(
    ("choices", "what"),
    [
        ({"pp": 2}, "schedule 1f1b on 2 stages.*half of its rate.*dualpipe_v"),
        ({"pp": 2, "schedule": "zbv"}, "schedule zbv"),
        ({"microbatch_size": 2, "token_parts": 2}, "token_parts is 2.*one of the two"),
    ],
)
def test_what_cannot_stand_beside_is_refused(choices: dict[str, Any], what: str) -> None:
    with pytest.raises(PlanError, match=what):
        paired(**choices)


def test_one_microbatch_has_no_other_beside_it() -> None:
    with pytest.raises(PlanError, match="with 1 microbatches no forward of one stands beside a backward"):
        paired(batch=2)


def test_every_row_stands_once() -> None:
    program = paired(pp=2, schedule="dualpipe_v", batch=16)
    c = program.columns
    keys = np.stack([c.effect, c.stage, c.hop, c.microbatch, c.part, program.list_of_row])
    assert len(np.unique(keys, axis=1).T) == len(c)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "pp", "chunks"),
    [
        *(("dualpipe_v", pp, 2) for pp in (1, 2, 3, 4)),
        *(("dualpipe", pp, 1) for pp in (2, 4)),
        *(("interleaved_1f1b", pp, chunks) for pp in (2, 3, 4) for chunks in (2, 3, 4)),
    ],
)
def test_any_number_of_microbatches_has_no_deadlock(schedule: str, pp: int, chunks: int) -> None:
    """And keeps its rate once there are as many as fill the pipeline from both ends."""
    model, refused = experts(24), []
    for num in (*range(1, 14), 17, 25):
        job = {"model": model, "pp": pp, "schedule": schedule, "batch": 2 * num, "num_chunks": chunks}
        try:
            program = paired(step=False, **job)
        except PlanError:
            refused.append(num)
            continue
        verify(program)
        if num >= 2 * pp:
            bare = span_s(0.0, is_beside=True, **job) / span_s(0.0, is_beside=False, **job)
            assert 1.0 - 1e-9 <= bare < 1.08, num
    assert 1 in refused and max(refused) <= pp
