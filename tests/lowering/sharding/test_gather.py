"""Sharded state: what is gathered when, how many bytes, on which stream, and what computes then read."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.lowering.plans import (
    DENSE,
    EXPERTS,
    TIED,
    AskedLinks,
    NamedWork,
    lowered,
    plan,
    rows_named,
)

from meshwright.ir import verify, wire
from meshwright.ir.table import Exchange
from meshwright.lowering.place import place
from meshwright.lowering.sharding.gather import Unshard
from meshwright.simulator import price
from meshwright.specs import Cluster, ModelSpec
from meshwright.stage.mesh import device_order

BLOCKS, MICROBATCHES = DENSE.num_layers, 4


def zero3(model=DENSE, **choices):
    return plan(model, **{"dp": 4, "sharding": "zero3", **choices})


def asked_bytes(chosen, name):
    """Bytes that pricing asks for, by list: one number for every row of this name."""
    program = lowered(chosen)
    links = AskedLinks()
    cluster = Cluster(f"{chosen.num_devices}xcpu")
    placement = place(program, cluster, device_order(chosen))
    price(wire(program), NamedWork(), links, placement)
    classes = {view.exchange for d in range(program.num_lists) for view in rows_named(program, name, d)}
    return {num_bytes for exchange, num_bytes, _ in links.asked if exchange in classes}


def parameter_reads(program, name):
    """What every row of this name reads of parameters: (kind, offset) -> times."""
    effects = [program.tables.effects[e] for e in program.columns.effect]
    found = [effect for effect in effects if effect.name == name]
    assert found
    return [Counter((p.kind, p.offset) for p in effect.reads if "parameter" in p.kind) for effect in found]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_blocks_are_gathered_for_the_forward_and_again_for_the_backward(recompute):
    """Neighbours share: the last block's backward follows its forward, the first block's forward its backward."""
    program = lowered(zero3(recompute=recompute))
    gathers = rows_named(program, "UNSHARD")
    # falling blocks of a microbatch, then rising ones of the next: both ends of the zigzag are shared
    assert len(gathers) == MICROBATCHES * (2 * BLOCKS - 2) + 1
    inner = Counter(view.stage for view in gathers)
    assert inner[1] == inner[2] == 2 * MICROBATCHES
    assert inner[BLOCKS - 1] == MICROBATCHES and inner[0] == MICROBATCHES + 1
    assert {view.stream for view in gathers} == {"reduce"}
    assert {view.exchange for view in gathers} == {Exchange(("dp",), algorithm="all_gather")}


def test_every_stage_of_a_pipeline_gathers_for_every_microbatch():
    """One block a stage: forward and backward of the last stage alternate and are one run."""
    program = lowered(zero3(pp=4, dp=2))
    counts = [len(rows_named(program, "UNSHARD", device)) for device in range(4)]
    assert counts[3] == 1 and counts[0] == 1
    two = lowered(zero3(pp=2, dp=2))
    for device in range(2):
        order = [view.stage for view in two.instructions(device) if view.name in ("F", "B")]
        changes = 1 + sum(a != b for a, b in zip(order, order[1:], strict=False))
        assert len(rows_named(two, "UNSHARD", device)) == changes > 2 * MICROBATCHES


@pytest.mark.parametrize("prefetch", [0, 1, 2, 3])
def test_gathers_run_ahead_by_the_window_and_no_further(prefetch):
    whole = lowered(plan(dp=4), (BLOCKS,))
    exchanges = dict.fromkeys(range(BLOCKS), Exchange(("dp",), algorithm="all_gather"))
    program = Unshard(exchanges, prefetch)(whole)
    verify(program)
    kind = next(kind for kind in program.tables.value_kinds if kind.name == "gathered_parameter")
    assert kind.ring == prefetch + 1
    views = list(program.instructions(0))
    order = [(view.name, view.stage) for view in views if view.name in ("F", "B", "UNSHARD")]
    runs, ahead = [], []
    for name, stage in order:
        if name == "UNSHARD":
            ahead.append(len(ahead) - len(runs))
        elif not runs or stage != runs[-1]:
            runs.append(stage)
    assert len(ahead) == len(runs) and max(ahead) == prefetch
    # once filled, the window stays full, but for a gather that the run before of its own stage would read
    behind = [1 + max((m for m in range(n) if runs[m] == runs[n]), default=-1) for n in range(len(runs))]
    begins = np.maximum.accumulate([max(n - prefetch, each) for n, each in enumerate(behind)])
    assert ahead[prefetch:] == (np.arange(len(runs)) - begins).tolist()[prefetch:]
    assert min(ahead[prefetch:]) == min(prefetch, 1), "there are such runs"


def test_computes_read_what_was_gathered_and_the_step_reads_its_part():
    program = lowered(zero3(EXPERTS, ep=4))  # every device has other experts: only the rest is gathered
    for name in ("F", "B"):
        for reads in parameter_reads(program, name):
            assert reads == {("gathered_parameter", 0): 1, ("parameter", 1): 1}
    assert all(kind == "parameter" for reads in parameter_reads(program, "STEP") for kind, _ in reads)
    for reads in parameter_reads(lowered(zero3()), "F"):
        assert {kind for kind, _ in reads} == {"gathered_parameter"}


def test_a_degree_of_one_gathers_nothing():
    program = lowered(zero3(sharding_degree=1))
    assert not rows_named(program, "UNSHARD")
    assert len(rows_named(program, "REDUCE_GRAD")) == BLOCKS


def test_gathered_bytes_are_those_of_the_parameters_in_their_format():
    blocks = {2.0 * DENSE.num_block_parameters()}
    ends = DENSE.num_embedding_parameters, DENSE.num_head_parameters + DENSE.num_norm_parameters
    whole = {2.0 * (DENSE.num_block_parameters() + end) for end in ends}
    assert asked_bytes(zero3(), "UNSHARD") == blocks | whole
    assert asked_bytes(zero3(sharding_degree=2), "UNSHARD") == blocks | whole
    assert asked_bytes(zero3(dtype="float32"), "UNSHARD") == {2 * each for each in blocks | whole}


@pytest.mark.parametrize("sharding", ["none", "zero1"])
@pytest.mark.parametrize(("reduction", "size"), [("float32", 4), ("bfloat16", 2), ("", 2)])
def test_reduced_bytes_are_those_of_whole_gradients_in_their_format(sharding, reduction, size):
    chosen = plan(pp=4, dp=2, sharding=sharding, reduction_dtype=reduction)
    middle = float(size * DENSE.num_block_parameters())
    first, last = DENSE.num_embedding_parameters, DENSE.num_head_parameters + DENSE.num_norm_parameters
    assert asked_bytes(chosen, "REDUCE_GRAD") == {middle, middle + size * first, middle + size * last}


@pytest.mark.parametrize("sharding", ["zero1", "zero2"])
@pytest.mark.parametrize(
    ("overlap", "reduce_stream", "gather_stream"),
    [
        ((), "compute", "compute"),
        (("reduce",), "reduce", "compute"),
        (("gather",), "compute", "reduce"),
        (("reduce", "gather"), "reduce", "reduce"),
    ],
)
def test_updated_parameters_are_gathered_once_a_group_behind_the_step(
    sharding, overlap, reduce_stream, gather_stream
):
    chosen = plan(TIED, pp=2, dp=2, sharding=sharding, overlap=overlap)
    program = lowered(chosen)
    groups = program.tables.groups
    for device in range(2):
        views = list(program.instructions(device))
        last_step = max(position for position, view in enumerate(views) if view.name == "STEP")
        gathered: Counter = Counter()
        for position, view in enumerate(views):
            if view.name == "GATHER_PARAM":
                assert position > last_step and view.stream == gather_stream
                gathered[groups[program.tables.groups_of_stage[view.stage][view.part]].name] += 1
            if view.name == "REDUCE_GRAD":
                assert view.stream == reduce_stream
        stages = {view.stage for view in views if view.name == "F"}
        held = [group.name for group in groups if stages & set(group.stages)]
        assert gathered == Counter(held), "both copies of the tied table, too"
    assert not rows_named(program, "UNSHARD")


def test_each_level_holds_less_than_the_one_before():
    model = ModelSpec.decoder(16, 64, 8)  # deep enough that a window of gathered blocks is a small part
    peaks = [
        float(np.max(verify(lowered(plan(model, dp=4, sharding=level))).peak_bytes))
        for level in ("none", "zero1", "zero2", "zero3")
    ]
    assert sorted(peaks, reverse=True) == peaks and len(set(peaks)) == 4
