"""Every way in which devices share sequences equals one process: kinds, layouts, degrees; with grouped and with plain heads,
packed documents and windows. And what each of them sends is its closed form, as counted and as priced."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import catalog
from meshwright.executor.data.packing import PackedSequences, SampleCount
from meshwright.executor.data.token_shard import TokenShards
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool
from meshwright.ir.table import Kind
from meshwright.ir.timing.wiring import wire
from meshwright.lowering.lower import lower
from meshwright.simulator.pricing import bytes_moved
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.context_parallel import ASKED_FOR, CONTEXTS
from meshwright.specs.sequence.sequence_part import ARRANGEMENTS
from meshwright.specs.training.source import Source
from meshwright.stage.exchange.inner import inner_exchanges
from meshwright.stage.mesh import device_order, num_members
from meshwright.stage.piece import executed_pieces
from meshwright.stage.work import microbatch_shape
from tests.covering import always, covered, examples
from tests.executor.packed_reference import train_document_by_document
from tests.executor.token_data import shards_of
from tests.planned_case import GRADIENTS, MODELS, Planned, legal
from tests.training_case import ADAMW, Reference, largest_difference, reference

LENGTH, SAMPLES = 24, 2
SGD = replace(ADAMW, name="sgd")  # by which updated parameters are as exact as gradients
FLOAT32 = 1e-5
MODEL_OF = {"grouped": "llama", "plain": "plain heads", "packed": "llama", "window": "windowed"}
DOCUMENTS = [[1 + (n * n + i) % 31 for i in range(1 + n * n % 17)] for n in range(30)]


def ways(num_processes: int) -> list[dict[str, Any]]:
    """Kinds of context parallelism with every layout; on four processes also two that exchange heads inside a ring of two."""
    found = [{"context": kind, "token_layout": layout} for kind in CONTEXTS for layout in ARRANGEMENTS]
    if num_processes > 2:
        found += [{"ulysses": num_processes // 2, "token_layout": layout} for layout in ARRANGEMENTS]
    return [{"cp": num_processes, **each} for each in found]


def cases() -> list[tuple[str, Planned]]:
    """What is attended to, and how."""
    found = [
        (name, Planned(model, batch=SAMPLES, length=LENGTH, choices={"optimizer": "sgd", **way}))
        for number in (2, 4)
        for way in ways(number)
        for name, model in MODEL_OF.items()
    ]
    can_be = set(map(str, legal(iter(case for _, case in found))))
    return [(name, case) for name, case in found if str(case) in can_be]


CASES = cases()
ROWS = [{"name": name, **case.choices} for name, case in CASES]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    return shards_of(tmp_path_factory.mktemp("packed"), DOCUMENTS, vocabulary_size=32)


def run_packed(
    case: Planned, shards: TokenShards, pool: Pool, drawn: torch.dtype = torch.float64
) -> tuple[JobResult, Reference]:
    """A step on packed documents, and the same with one document at a time."""
    job, plan = case.job(1)
    assert job.training is not None
    job = replace(job, training=replace(job.training, source=Source(str(shards.folder))))
    packed = PackedSequences(shards, SampleCount(case.batch))
    model, steps = MODELS[case.model], range(1)
    alone = train_document_by_document(model, packed, case.batch, steps, case.length, SGD, drawn)
    return pool.run(job, places=device_order(plan)), alone


def check(result: JobResult, expected: Reference, tolerance: float) -> None:
    """Loss, norm, every gradient and every updated parameter."""
    assert result.losses == pytest.approx(expected.losses, rel=tolerance)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(expected.norms, rel=tolerance)
    assert largest_difference(result.gradients[0], expected.gradients[0]) < tolerance
    assert largest_difference(result.parameters, expected.parameters) < tolerance


@pytest.mark.parametrize(
    ("name", "case"), covered(CASES, ROWS, 1), ids=lambda each: each if isinstance(each, str) else str(each)
)
def test_every_way_equals_one_process(name: str, case: Planned, shards: TokenShards, gloo_pool: Pool) -> None:
    if name == "packed":
        check(*run_packed(case, shards, gloo_pool), GRADIENTS)
        return
    expected = reference(MODELS[case.model], SGD, case.batch, 1, length=case.length)
    check(case.run(gloo_pool, 1), expected, GRADIENTS)


@pytest.mark.parametrize(
    ("name", "case"), always(CASES, {0}), ids=lambda each: each if isinstance(each, str) else str(each)
)
def test_in_single_precision_too(name: str, case: Planned, shards: TokenShards, gloo_pool: Pool) -> None:
    case = replace(case, choices={**case.choices, "dtype": "float32"})
    if name == "packed":
        check(*run_packed(case, shards, gloo_pool, torch.float32), FLOAT32)
        return
    expected = reference(MODELS[case.model], SGD, case.batch, 1, torch.float32, length=case.length)
    check(case.run(gloo_pool, 1), expected, FLOAT32)


@settings(max_examples=examples(20), deadline=None)
@given(
    case=st.sampled_from([case for name, case in CASES if name in ("packed", "window")]),
    lengths=st.lists(st.one_of(st.integers(1, 6), st.integers(20, 70)), min_size=4, max_size=9),
)
def test_documents_of_any_lengths_equal_one_process(
    case: Planned, lengths: list[int], gloo_pool: Pool
) -> None:
    """A few long ones among short ones, which begin and end wherever ranks do."""
    lengths = [*lengths, 2 * SAMPLES * LENGTH]  # enough for a step
    documents = [[1 + (n + i * i) % 31 for i in range(length)] for n, length in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.executor.data.shard_writer.HELD_OUT_SHARE", 0.0)
        made = shards_of(Path(folder), documents, vocabulary_size=32)
        check(*run_packed(case, made, gloo_pool), GRADIENTS)


def sent_in_layer(plan: Plan) -> Mapping[str, float]:
    """Bytes that a device sends in a layer's forward and backward for all its tokens, by instruction: the table of Liu et al.
    2023, Jacobs et al. 2023 and Fang and Zhao 2024. q: bytes of its queries; rho: key-value heads per query head, repeated
    where there are fewer than ranks. A ring's gradients take a hop more, in at least 32 bits."""
    if plan.context in ASKED_FOR:
        return sent_by_relays(plan)
    own, attention = plan.context_parallel, plan.model.attention
    size = {"float64": 8, "bfloat16": 2}[plan.dtype]
    q = SAMPLES * plan.workload.sequence_length // plan.cp * attention.query_size * size
    group, ring = own.heads_degree, own.ring_degree
    repeats = own.repeats_of_key(attention.num_heads, attention.num_kv_heads) if group > 1 else 1
    rho = repeats * attention.num_kv_heads / attention.num_heads
    found = {"ALL_TO_ALL": 2 * (2 + 2 * rho) * (group - 1) / group * q} if group > 1 else {}
    if own.kind == "all_gather":
        return {"ALL_GATHER": 2 * (ring - 1) * rho * q, "REDUCE_SCATTER": 2 * (ring - 1) * rho * q}
    if ring > 1:
        found["SEND_BLOCK"] = 2 * 2 * (ring - 1) * rho * q
        found["SEND_BLOCK_GRADIENT"] = 2 * ring * rho * q * max(1, 4 / size)
    return found


def sent_by_relays(plan: Plan) -> Mapping[str, float]:
    """The same of Wang et al. 2024, whose sums are of one number of a head of d, and of Li et al. 2021, whose gradients of
    keys and values are scattered, not all-reduced: 6 (P - 1) q rho in place of 8 (P - 1) q. Sums: 32 bits at least."""
    attention, hops = plan.model.attention, plan.cp - 1
    size = {"float64": 8, "bfloat16": 2}[plan.dtype]
    q = SAMPLES * plan.workload.sequence_length // plan.cp * attention.query_size * size
    wide = max(1, 4 / size)
    sums = wide / attention.head_dim
    if plan.context == "token_ring":
        return {
            "SEND_QUERY": hops * q, "SEND_PARTIAL": hops * q * (1 + sums), "SEND_ROWS": hops * q * (2 + 2 * sums),
            "SEND_QUERY_GRADIENT": hops * q * wide,
        }  # fmt: skip
    once = 2 * hops * q * attention.num_kv_heads / attention.num_heads
    return {"SEND_KEYS": once, "SEND_VALUES": once, "REDUCE_SCATTER": once}


def priced_in_rows(plan: Plan) -> Mapping[str, float]:
    """What the simulator is told that a device sends inside its stage, by instruction."""
    schedule = catalog.find_schedule(plan.schedule)
    program = lower(plan, schedule, pieces=executed_pieces(plan), in_segments=True)
    sizes, found = bytes_moved(wire(program)), dict[str, float]()
    for number in range(program.num_rows):
        row = program.row(number)
        if row.exchange is None or row.kind == Kind.RECEIVE or row.name == "REDUCE_GRAD":
            continue
        share = 1.0
        if row.kind == Kind.COLLECTIVE:
            members = prod(axis.size for axis in program.axes if axis.name in row.exchange.axes)
            share = (members - 1) / members
        found[row.name] = found.get(row.name, 0.0) + share * sizes[number]
    return found


def priced_composed(plan: Plan) -> float:
    """The same of the exchanges inside whole stages. Software that gathers keys and values for whole stages keeps none of
    them, and gathers them again for the backward."""
    (stage,) = plan.stages()
    passes = {name: inner_exchanges(plan, stage, name, microbatch_shape(plan)) for name in "FB"}
    is_again = plan.context == "all_gather"
    every = [
        each
        for name, own in passes.items()
        for each in own
        if not (is_again and name == "B" and each.exchange.algorithm == "all_gather")
    ]
    shares = (1 - 1 / num_members(plan, each.exchange.axes) for each in every)
    sent = (each.count * each.bytes * share for each, share in zip(every, shares, strict=True))
    return plan.num_microbatches * sum(sent)


BYTE_CASES = [
    Planned(model, batch=SAMPLES, length=LENGTH, choices={"dtype": dtype, **way})
    for number in (2, 4)
    for way in ways(number)
    for model in ("llama", "plain heads")
    for dtype in ("float64", "bfloat16")
]


@pytest.mark.parametrize(
    "case", covered(BYTE_CASES, [{"model": c.model, **c.choices} for c in BYTE_CASES], 1), ids=str
)
def test_what_is_sent_is_counted_and_priced_as_the_closed_form_says(case: Planned, gloo_pool: Pool) -> None:
    plan = case.plan()
    expected = {name: plan.model.num_layers * each for name, each in sent_in_layer(plan).items()}
    for rank in case.run(gloo_pool, 1).sent_bytes:
        assert {name: num for name, num in rank.items() if name != "REDUCE_GRAD"} == expected
    assert priced_in_rows(plan) == pytest.approx(expected, rel=1e-12)
    assert priced_composed(plan) == pytest.approx(sum(expected.values()), rel=1e-12)
