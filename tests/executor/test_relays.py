"""Queries that travel, and whole rows of scores around a ring: both equal one process, and their steps are all needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.executor.data.token_shard import TokenShards
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.specs.error import MeshwrightError, PlanError
from tests.covering import always
from tests.executor.packed_reference import check_against_documents_alone
from tests.executor.test_context_layouts import lowered, planned
from tests.executor.token_data import shards_of
from tests.lowering.plans import rows_named
from tests.planned_case import MODELS, Planned, assert_equal_to_one_process
from tests.training_case import ADAMW, SEQUENCE, largest_difference, reference

KINDS = ("token_ring", "ring_self_attention")
ITERATIONS = 2
FLOAT32 = 1e-5  # DESIGN's tolerance of gradients and SGD's parameters
DOCUMENTS = [[1 + (n * n + i) % 31 for i in range(1 + n * n % 13)] for n in range(36)]  # uneven ones
# Grouped queries and full ones, latent attention, a window, layouts of tokens, and what else cuts a stage.
CASES = [
    ("llama", {"cp": 2}),
    ("windowed", {"cp": 2}),
    ("llama", {"cp": 4, "token_layout": "stripe"}),
]
MORE = [
    ("llama", {"cp": 2, "tp": 2, "sequence_parallel": True, "token_layout": "zigzag"}),
    ("windowed", {"cp": 4, "token_layout": "contiguous"}),
    ("gpt", {"cp": 4}),
    ("latent", {"cp": 4, "optimizer": "sgd"}),
    ("deepseek", {"cp": 2, "pp": 2, "recompute": "full"}),
    ("llama", {"cp": 2, "microbatch_size": 2, "token_parts": 2}),
    ("gpt", {"cp": 2, "dp": 2, "sharding": "zero3", "split_backward": True}),
    ("mixtral", {"cp": 2, "tp": 2}),
    ("tied", {"cp": 2, "pp": 2, "schedule": "zb_h1", "token_layout": "contiguous"}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "choices"), [*CASES, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)], ids=str
)
def test_it_equals_one_process(kind: str, model: str, choices: dict[str, Any], gloo_pool: Pool) -> None:
    """Loss, every gradient, the norm and the parameters, in float64."""
    case = planned(model, context=kind, **choices)
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "cp"), always([("llama", 4), ("gpt", 2)], {1}))
def test_it_equals_one_process_in_float32(kind: str, model: str, cp: int, gloo_pool: Pool) -> None:
    case = planned(model, cp=cp, context=kind, dtype="float32", optimizer="sgd")
    found = case.run(gloo_pool, 1)
    expected = reference(case.plan().model, replace(ADAMW, name="sgd"), case.batch, 1)
    assert found.losses == pytest.approx(expected.losses, rel=FLOAT32)
    assert found.iterations[0].gradient_norm == pytest.approx(expected.norms[0], rel=FLOAT32)
    for ours, theirs in (
        (found.gradients[0], expected.gradients[0]),
        (found.parameters, expected.parameters),
    ):
        assert largest_difference({name: x.double() for name, x in ours.items()}, theirs) < FLOAT32


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    """Documents packed one behind the other."""
    return shards_of(tmp_path_factory.mktemp("packed"), DOCUMENTS, vocabulary_size=32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "choices"), always([("gpt", {"cp": 2}), ("llama", {"cp": 4, "token_layout": "zigzag"})], {0})
)
def test_packed_documents_equal_documents_alone(
    kind: str, model: str, choices: dict[str, Any], shards: TokenShards, gloo_pool: Pool
) -> None:
    case = Planned(model, choices={"context": kind, **choices})
    check_against_documents_alone(case, shards, gloo_pool, ITERATIONS)


STEPS = {
    "token_ring": (
        *("ATTEND", "MERGE", "SEND_QUERY", "RECEIVE_PARTIAL", "PREPARE_ROWS", "ATTEND_BACKWARD", "SEND_ROWS"),
        *("ADD_GRADIENT", "RECEIVE_QUERY_GRADIENT"),
    ),
    "ring_self_attention": (
        *("SCORE", "WEIGH", "SEND_KEYS", "RECEIVE_VALUES", "WEIGH_BACKWARD", "SOFTMAX_BACKWARD"),
        *("SCORE_BACKWARD", "REDUCE_SCATTER"),
    ),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in STEPS[kind]])
def test_a_step_that_is_left_out_is_refused(kind: str, name: str) -> None:
    program = lowered(planned("gpt", cp=4, context=kind))
    names = np.array([effect.name for effect in program.tables.effects])
    rows = np.flatnonzero(names[program.columns.effect] == name)
    assert len(rows)
    for left_out in (int(rows[0]), int(rows[len(rows) // 2])):
        kept = np.delete(np.arange(program.num_rows), left_out)
        offsets = program.offsets - (program.offsets > left_out)
        with pytest.raises(MeshwrightError):
            verify(replace(program, columns=program.columns.take(kept), offsets=offsets))


def test_what_returns_is_sent_straight_back() -> None:
    """As far as what it was made of has come; every other message goes to the next device."""
    program = lowered(planned("gpt", cp=4, context="token_ring"))
    found: dict[str, set[tuple[int, int]]] = {}
    for number in range(program.num_rows):
        row = program.row(number)
        if row.name.startswith("SEND_") and row.exchange is not None:
            found.setdefault(row.name, set()).add((row.part, row.exchange.shift))
    back = {(step, -step) for step in (1, 2, 3)}
    assert found == {
        **dict.fromkeys(("SEND_QUERY", "SEND_ROWS"), {(step, 1) for step in (0, 1, 2)}),
        **dict.fromkeys(("SEND_PARTIAL", "SEND_QUERY_GRADIENT"), back),
    }


@pytest.mark.parametrize("recompute", ["selective", "selective_op"])
def test_scores_that_others_read_are_not_made_again(recompute: str) -> None:
    with pytest.raises(PlanError, match="none or full"):
        planned(cp=2, context="ring_self_attention", recompute=recompute).plan()


def test_work_is_that_of_whole_rows_of_scores() -> None:
    """Two products of a device's queries with all keys forward, four backward; each step has those of one device."""
    program, cp, model = lowered(planned("gpt", cp=4, context="ring_self_attention")), 4, MODELS["gpt"]
    product = 2 * SEQUENCE // cp * SEQUENCE * model.hidden_size  # of one sequence, in all heads
    one = next(view.work.tokens for view in rows_named(program, "SCORE")) * cp // SEQUENCE
    times = {"SCORE": 1, "WEIGH": 1, "SCORE_BACKWARD": 2, "WEIGH_BACKWARD": 2}
    for name, number in times.items():
        rows = rows_named(program, name)
        assert len(rows) % (cp * model.num_layers) == 0
        for view in rows:
            assert view.work.flops == pytest.approx(number * one * product / cp)
