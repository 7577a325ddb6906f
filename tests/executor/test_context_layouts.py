"""Context parallelism in training: sequences divided along cp, in every kind, equal one process in float64; what is sent."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from meshwright import catalog
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.lowering.lower import lower
from meshwright.specs.error import MeshwrightError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.sequence.context_parallel import CONTEXTS
from meshwright.stage.piece import executed_pieces
from tests.covering import always, covering, product, slow_cases
from tests.planned_case import BATCH, MODELS, Planned, assert_equal_to_one_process, legal
from tests.training_case import SEQUENCE, largest_difference

ITERATIONS = 2
BYTES = 8  # of a number in float64


def planned(model: str = "llama", clip: float = 0.0, dropout: float = 0.0, **choices: Any) -> Planned:
    """A layout by its choices."""
    return Planned(model, clip, dropout, choices=choices)


def lowered(case: Planned) -> Program:
    """Its program."""
    plan = case.plan()
    schedule = catalog.find_schedule(plan.schedule)
    return lower(plan, schedule, pieces=executed_pieces(plan), in_segments=True)


def layouts(num_processes: int) -> list[Planned]:
    """A set of layouts on so many processes that has every pair of choices which is legal."""
    factors = {
        "context": CONTEXTS,
        "beside": ({}, {"pp": 2}, {"dp": 2}, {"tp": 2}),
        "schedule": ("1f1b", "zb_h1"),
        "sequence_parallel": (False, True),
        "sharding": ("none", "zero1", "zero2", "zero3"),
        "split_backward": (False, True),
        "recompute": ("none", "full"),
        "clip": (0.0, 0.1),
        "model": ("llama", "tied", "qwen", "gpt"),
    }
    rows = []
    for row in product(factors):
        beside = row["beside"]
        cp = num_processes // prod(beside.values())
        is_needless = (
            cp < 2
            or (row["sequence_parallel"] and "tp" not in beside)
            or (row["schedule"] != "1f1b" and "pp" not in beside)
        )
        if not is_needless:
            rows.append(row)
    return legal(_divided(rows[i], num_processes) for i in covering(rows))


def _divided(row: dict[str, Any], num_processes: int) -> Planned:
    choices = {k: v for k, v in row.items() if k not in ("beside", "clip", "model")} | row["beside"]
    return planned(row["model"], row["clip"], cp=num_processes // prod(row["beside"].values()), **choices)


def covering_layouts() -> list[Planned]:
    """On two processes, then on four."""
    return [*layouts(2), *layouts(4)]


# Experts divided among devices that share sequences, too.
EXPERTS = [
    planned("qwen moe", cp=2, ep=2),
    planned("qwen moe", cp=2, dp=2, ep=2, context="ulysses", sharding="zero2"),
    planned("mixtral", cp=2, tp=2, sequence_parallel=True, context="all_gather"),
]
# Latent attention, whose values have another width than keys.
LATENT = [
    *(planned("latent", cp=2, context=context, optimizer="sgd") for context in CONTEXTS),
    planned("latent", cp=4, optimizer="sgd"),
    planned("latent", cp=4, context="ulysses", split_backward=True, optimizer="sgd"),
    planned("deepseek", clip=0.1, cp=2, tp=2, context="all_gather", sequence_parallel=True, sharding="zero1"),
    planned("deepseek", cp=2, pp=2, context="ring", token_layout="contiguous", recompute="full"),
    planned("deepseek", cp=2, dp=2, ep=2, context="ulysses", sharding="zero3", recompute="selective"),
]
QUICK = [
    planned("deepseek", cp=2, context="ulysses", split_backward=True),
    planned("gpt", cp=2, context="ring", recompute="full", sharding="zero1"),
    planned("tied", clip=0.1, cp=2, tp=2, sequence_parallel=True, split_backward=True),
    planned("qwen", cp=2, dp=2, sharding="zero3", context="all_gather", recompute="full"),
    planned("llama", cp=2, pp=2, context="ring", token_layout="contiguous", recompute="full"),
    planned("gpt", clip=0.1, cp=4, sharding="zero2", split_backward=True),
    planned("tied", cp=2, context="ring", recompute="selective"),
    planned("latent", cp=4, ulysses=2, token_layout="stripe", recompute="selective", optimizer="sgd"),
]
# As these, of other models and kinds.
MORE = [
    planned("latent", cp=2, tp=2, context="all_gather", optimizer="sgd"),
    planned("deepseek", cp=2, context="ring", recompute="selective"),
    *(
        planned("gpt", cp=2, context=context, recompute="full", sharding="zero1")
        for context in CONTEXTS
        if context != "ring"
    ),
    planned("tied", cp=2, pp=2, context="ulysses", schedule="zb_h1"),
    planned("mixtral", cp=2),
    # heads exchanged inside a ring, and layouts that are not a kind's own
    planned("gpt", clip=0.1, cp=4, ulysses=2, recompute="full", sharding="zero3", split_backward=True),
    planned("qwen", cp=4, ulysses=2, token_layout="stripe", sharding="zero1", recompute="selective_op"),
    planned("tied", cp=4, ulysses=2, microbatch_size=2, token_parts=2),
    planned("mixtral of 4", cp=4, ulysses=2, ep=4),
    planned("deepseek", cp=2, pp=2, context="ulysses", token_layout="zigzag"),
    planned("gpt", cp=2, tp=2, sequence_parallel=True, token_layout="stripe", recompute="selective"),
    *(
        planned("tied", cp=4, context=context, token_layout=layout, recompute="selective")
        for context in ("ring", "all_gather", "ulysses")
        for layout in ("contiguous", "stripe")
    ),
    planned("qwen", cp=2, tp=2, context="ulysses", recompute="selective"),
]


@pytest.mark.parametrize("case", always(QUICK, {*range(6)}), ids=str)
def test_divided_sequences_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*slow_cases(covering_layouts), *EXPERTS, *LATENT, *MORE], ids=str)
def test_a_covering_set_of_layouts_equals_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


def test_their_programs_are_verified() -> None:
    for case in [*QUICK, *MORE, *layouts(4)[::4]]:
        try:
            verify(lowered(case))
        except MeshwrightError as error:
            pytest.fail(f"{case}: {error}")


@pytest.mark.slow
def test_draws_do_not_know_how_sequences_are_divided(gloo_pool: Pool) -> None:
    first = planned(dropout=0.3).run(gloo_pool, 2)
    for choices in ({"cp": 2}, {"cp": 2, "tp": 2, "sequence_parallel": True, "context": "ulysses"}):
        other = planned(dropout=0.3, **choices).run(gloo_pool, 2)
        assert other.losses == pytest.approx(first.losses, rel=1e-10)
        assert largest_difference(other.gradients[0], first.gradients[0]) < 1e-10


def sent_per_layer(context: str, cp: int) -> dict[str, float]:
    """Bytes that a device sends in one layer for one microbatch in all, by name, in q, those of its queries: with rho
    key-value heads for each query head."""
    rho = 2 / 4
    if context == "ulysses":
        return {"ALL_TO_ALL": 2 * (2 + 2 * rho) * (cp - 1) / cp}
    once = 2 * (cp - 1) * rho
    if context == "all_gather":
        return {"ALL_GATHER": once, "REDUCE_SCATTER": once}
    if context == "ring_self_attention":  # 6 (P - 1) rho; published, with gradients all-reduced, 8 (P - 1)
        return {"SEND_KEYS": once, "SEND_VALUES": once, "REDUCE_SCATTER": once}
    if context == "token_ring":  # a sum is one number of a head, as wide as all others in float64
        hops, number = cp - 1, 1 / (MODELS["llama"].hidden_size // 4)
        return {
            "SEND_QUERY": hops, "SEND_PARTIAL": hops * (1 + number),
            "SEND_ROWS": hops * (2 + 2 * number), "SEND_QUERY_GRADIENT": hops,
        }  # fmt: skip
    # backward blocks travel again, their gradients behind them, and one hop more home
    return {"SEND_BLOCK": 2 * once, "SEND_BLOCK_GRADIENT": once + 2 * rho}


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_attention_sends_is_the_closed_form(context: str, gloo_pool: Pool) -> None:
    cp, model = 2, MODELS["llama"]
    result = planned(cp=cp, context=context).run(gloo_pool, 1)
    query = BATCH * SEQUENCE // cp * model.hidden_size * BYTES
    for sent in result.sent_bytes:
        found = {name: num_bytes for name, num_bytes in sent.items() if name != "REDUCE_GRAD"}
        expected = {
            name: model.num_layers * query * times for name, times in sent_per_layer(context, cp).items()
        }
        assert {name: found.get(name) for name in expected} == pytest.approx(expected)


def test_no_more_than_two_blocks_are_under_way() -> None:
    program = lowered(planned("gpt", cp=4, recompute="full"))
    slots = {kind.name: kind.ring for kind in program.tables.value_kinds}
    assert slots["travelling_block"] == slots["arrived_gradient"] == 2
    here: set[tuple[int, int, int]] = set()
    most = 0
    for number in range(program.num_rows):
        row = program.row(number)
        if row.name == "RECEIVE_BLOCK":
            here.add((row.hop, row.microbatch, row.part + 1))
        elif row.name.startswith("ATTEND"):
            here.discard((row.hop, row.microbatch, row.part))
        most = max(most, len(here))
    assert most == 2 and not here


@pytest.mark.parametrize("name", ["ATTEND", "ATTEND_BACKWARD", "SEND_BLOCK", "RECEIVE_BLOCK_GRADIENT"])
def test_a_step_that_is_left_out_is_refused(name: str) -> None:
    program = lowered(planned("gpt", cp=4))
    names = np.array([effect.name for effect in program.tables.effects])
    rows = np.flatnonzero(names[program.columns.effect] == name)
    left_out = int(rows[len(rows) // 2])
    kept = np.delete(np.arange(program.num_rows), left_out)
    offsets = program.offsets - (program.offsets > left_out)
    with pytest.raises(MeshwrightError):
        verify(replace(program, columns=program.columns.take(kept), offsets=offsets))


def merged_per_layer(model: ModelSpec, tokens: int, cp: int) -> int:
    """FLOPs that a ring adds to its products in a layer for one microbatch: of each piece that came, 3 for a number of the
    output (a difference, its share, a sum), and one for each gradient of queries, keys and values, the own piece's too."""
    attention = model.attention
    of_gradients = attention.query_size + 2 * attention.num_kv_heads * attention.head_dim
    return tokens // cp * (3 * (cp - 1) * attention.query_size + cp * of_gradients)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("cp", [2, 4])
def test_work_is_all_done_in_the_steps_of_a_ring(cp: int, layout: str) -> None:
    """As much as the same attention over gathered keys and values, step by step, and what merging the pieces takes."""
    flops, products = {}, {}
    for context in ("ring", "all_gather"):
        case = planned(cp=cp, context=context, token_layout=layout)
        program = lowered(case)  # rows of the ranks of a stage are there once
        columns, works = program.columns, program.tables.works
        own = [works[w] for w in columns.work[program.kinds == Kind.COMPUTE].tolist() if w >= 0]
        flops[context] = sum(work.flops for work in own)
        operators = [each for work in own for each in work.operators]
        products[context] = sum(each.count * each.flops for each in operators if each.kind == "attention")
    plan = case.plan()
    each = merged_per_layer(plan.model, plan.tokens_per_microbatch, cp)
    merged = plan.num_microbatches * plan.model.num_layers * each
    assert products["ring"] == products["all_gather"] > 0
    assert flops["ring"] == flops["all_gather"] + merged
