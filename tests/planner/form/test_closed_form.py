"""The closed form against the simulated step and the memory estimate, over random candidates of small spaces."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.covering import always, examples

from meshwright.planner.form.closed_form import ClosedForm, closed_form
from meshwright.planner.form.cost_table import tables_of
from meshwright.planner.search.fitting import MEMORY_SLACK
from meshwright.planner.space.site import members
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_program import step_program
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
NUM_DRAWN, LEAST_DRAWN = 40, 20  # of fewer a median says little
MEDIAN_BOUND, NEAR_BOUND = 0.03, 0.15  # of |error|: its median, and its 90th percentile


def decoder(num_layers: int = 8, **fields: Any) -> ModelSpec:
    return ModelSpec.decoder(
        num_layers, 4096, 32, num_kv_heads=8, intermediate_size=14336, max_sequence_length=16384,
        **{"vocabulary_size": 32000, **fields},
    )  # fmt: skip


# (model, cluster, global batch, sequence, fixed)
SPACES: dict[str, tuple[ModelSpec, str, int, int, dict[str, Any]]] = {
    "decoder": (decoder(), "8xH100", 32, 4096, {}),
    "two nodes, long": (decoder(12), "2x8xH100", 32, 16384, {"microbatch_size": (1, 4), "tp": (1, 4)}),
    "sharded": (decoder(), "2x8xA100-80", 64, 4096, {"sharding": "zero3"}),
    "uneven": (decoder(10), "8xH100", 32, 4096, {"pp": 4}),
    "experts": (
        load_model("mixtral-8x7b"),
        "8x8xH100",
        128,
        4096,
        {"microbatch_size": 1, "tp": (1, 4), "cp": 1, "ep": (1, 4), "etp": 0},
    ),
    "experts in both foldings": (
        load_model("mixtral-8x7b"),
        "2x8xH100",
        64,
        4096,
        {
            "microbatch_size": 1,
            "tp": (2, 4),
            "cp": (1, 2),
            "etp": (0, 1),
            "schedule": ("1f1b", "interleaved_1f1b"),
        },
    ),
    "whole experts": (
        load_model("mixtral-8x7b"),
        "2x8xH100",
        64,
        4096,
        {"microbatch_size": 1, "tp": (1, 4), "cp": (1, 4), "ep": (2, 8), "etp": 1},
    ),
    "experts over more devices than attention": (
        load_model("mixtral-8x7b"),
        "2x8xH100",
        64,
        4096,
        {"microbatch_size": 1, "tp": (1, 2), "cp": 1, "ep": (1, 4), "etp": 4},
    ),
    "float8": (decoder(), "8xB200", 32, 4096, {"float8": "tensorwise"}),
    "tied": (load_model("gpt2"), "4xH100", 64, 1024, {}),
    "split vocabulary": (
        decoder(12, vocabulary_size=128_000),
        "8xH100",
        32,
        4096,
        {"vocabulary": ("one_barrier", "two_barriers", "interlaced")},
    ),
    "split, sharded, tied": (
        load_model("gpt2"),
        "8xH100",
        64,
        1024,
        {"vocabulary": ("one_barrier", "two_barriers"), "sharding": ("zero1", "zero3")},
    ),
    "narrow gradients": (decoder(), "8xH100", 32, 4096, {"software": "eager, float32 sums"}),
    "narrow gradients, always": (decoder(10), "8xH100", 32, 4096, {"software": "fused, float32 sums"}),
}


@cache
def space(name: str) -> Space:
    model, cluster, batch, sequence, fix = SPACES[name]
    return space_of(model, Cluster(cluster), Workload(batch, sequence), fix={**MIXED, **fix})


@cache
def form_of(name: str) -> ClosedForm:
    found = space(name)
    return closed_form(found, tables_of(found))


def drawn(found: Space) -> list[int]:
    count = min(max(LEAST_DRAWN, examples(NUM_DRAWN)), len(found))
    chosen: list[int] = np.random.default_rng(5).choice(len(found), count, replace=False).tolist()
    return chosen


@pytest.mark.parametrize("name", always([*SPACES], {2, 4}))
def test_steps_are_near_the_simulated_ones(name: str) -> None:
    found, form = space(name), form_of(name)
    numbers = drawn(found)
    steps = np.array([predict(found.plan(n), found.cluster).step.value for n in numbers])
    errors = np.abs(form.step_s[numbers] / steps - 1)

    assert (form.least_s[numbers] <= steps * (1 + 1e-9)).all()
    assert np.median(errors) < MEDIAN_BOUND
    assert np.quantile(errors, 0.9) < NEAR_BOUND


@pytest.mark.parametrize("name", SPACES)
def test_memory_is_the_estimate_and_never_above_it(name: str) -> None:
    found, form = space(name), form_of(name)
    for number in drawn(found):
        plan = found.plan(number)
        devices = estimate_memory(plan, found.cluster, registered()[plan.schedule]).devices
        needed = max(device.allocated_bytes + device.context_bytes for device in devices)
        assert form.needed_bytes[number] <= needed * (1 + MEMORY_SLACK)
        if plan.schedule == "1f1b" and not plan.model.num_experts:
            assert form.needed_bytes[number] == pytest.approx(needed, rel=1e-3)


def test_the_form_is_the_same_for_a_candidate_alone() -> None:
    whole, form = space("decoder"), form_of("decoder")
    alone = whole.taken(np.array([len(whole) // 3]))
    again = closed_form(alone, tables_of(alone))
    assert again.step_s[0] == pytest.approx(form.step_s[len(whole) // 3], rel=1e-12)
    assert again.allocated_bytes[0] == pytest.approx(form.allocated_bytes[len(whole) // 3], rel=1e-12)


def test_memory_needs_no_prices() -> None:
    found = space("experts")
    bare = closed_form(found, tables_of(found, is_priced=False))
    assert not bare.step_s.any()
    assert (bare.needed_bytes == form_of("experts").needed_bytes).all()


def test_more_microbatches_cost_what_they_cost_simulated() -> None:
    """A pipeline of stages that differ by embedding and head: what m more microbatches add is theirs alone."""
    model = decoder(8)
    fix = {
        **MIXED,
        "tp": 1,
        "dp": 1,
        "microbatch_size": 1,
        "sharding": "none",
        "recompute": "none",
        "overlap": (),
    }
    few, many = (
        space_of(model, Cluster("4xH100"), Workload(batch, 4096), fix={**fix, "schedule": "1f1b"})
        for batch in (8, 16)
    )
    short, long = (closed_form(each, tables_of(each)).step_s[0] for each in (few, many))
    simulated = [predict(each.plan(0), each.cluster).step.value for each in (few, many)]
    assert long - short == pytest.approx(simulated[1] - simulated[0], rel=1e-2)


@pytest.mark.parametrize(
    "choices",
    [
        {"tp": 2, "cp": 2}, {"dp": 8}, {"tp": 2, "dp": 4}, {"pp": 2, "cp": 2, "mesh_order": ("dp", "cp", "pp", "tp")},
        {"dp": 4, "pp": 2, "sharding": "zero1", "sharding_degree": 2, "mesh_order": ("dp", "pp", "cp", "tp")},
    ],
)  # fmt: skip
def test_members_are_those_of_the_placement(choices: dict[str, Any]) -> None:
    cluster = Cluster("8xH100")
    plan = Plan.of(decoder(), cluster, Workload(32, 4096), **MIXED, **choices)
    made = step_program(plan, cluster)
    exchanges = {inner.exchange for work in made.wiring.program.tables.works for inner in work.inner}
    exchanges |= {each for each in made.wiring.program.tables.exchanges if each.axes != ("pp",)}
    from meshwright.ir.table import Kind

    assert exchanges
    for exchange in exchanges:
        expected = made.placement.ends(made.wiring.program, 0, Kind.COLLECTIVE, exchange)
        assert members(plan, exchange.axes).tolist() == list(expected)
