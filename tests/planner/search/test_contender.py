"""Contenders: what is skipped is slower for certain, and the winner is that of a search that skips nothing."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.covering import always, examples

from meshwright.planner.form.closed_form import closed_form
from meshwright.planner.form.cost_table import CostSources, tables_of
from meshwright.planner.search import contender
from meshwright.planner.search.contender import Contenders, bounds_of
from meshwright.planner.search.search import search
from meshwright.planner.space.axis import AXES
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.predicted import predict
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ModelSpec, Workload, load_model
from meshwright.specs.error import OutOfMemoryError

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
# Of two microbatches the form has backwards in two halves as fast as no simulated step is; such a bound skips none too many.
OFF_OF_HALVES = 0.05
AS_FAST = 1.02  # what is nearly the best: slower ones are simulated here and there, as others let them
MODEL = ModelSpec.decoder(
    8, 4096, 32, num_kv_heads=8, intermediate_size=14336, max_sequence_length=16384, vocabulary_size=32000
)
# (model, cluster, global batch, sequence, fixed)
SPACES: dict[str, tuple[ModelSpec, str, int, int, dict[str, Any]]] = {
    "decoder": (MODEL, "8xH100", 24, 4096, {}),
    "two nodes": (MODEL, "2x8xA100-80", 48, 8192, {"recompute_blocks": 0}),
    "experts": (load_model("mixtral-8x7b"), "4x8xH100", 32, 4096, {"cp": 1, "recompute_blocks": 0}),
    "float8": (MODEL, "8xB200", 32, 4096, {"float8": ("", "tensorwise"), "recompute": "none"}),
}


@cache
def space(name: str) -> Space:
    model, cluster, batch, sequence, fix = SPACES[name]
    return space_of(model, Cluster(cluster), Workload(batch, sequence), fix={**MIXED, **fix})


@pytest.mark.parametrize("name", always([*SPACES], {2}))
def test_a_bound_is_below_the_closed_form_and_the_step(name: str) -> None:
    found = space(name)
    (bounds, even), form = bounds_of(found, CostSources(found)), closed_form(found, tables_of(found))
    assert (even <= bounds).all()
    halves = np.array([registered()[name].splits_backward for name in found.names["schedule"]])[
        found.schedule
    ]
    assert (bounds <= form.step_s * np.where(halves, 1 + OFF_OF_HALVES, 1 + 1e-9)).all()
    assert (bounds <= form.least_s * (1 + 1e-9))[found.pp == 1].all()  # where no device waits for another
    assert np.median(bounds / form.step_s) > 0.5  # a bound that says something
    for number in np.random.default_rng(3).choice(len(found), 12, replace=False).tolist():
        assert bounds[number] <= predict(found.plan(number), found.cluster).step.value


@pytest.mark.parametrize("name", always([*SPACES], {2}))
def test_what_is_skipped_is_not_the_best_by_the_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contender, "ENOUGH", 8)
    found = space(name)
    some = Contenders.of(found, found.cluster.memory_bytes)
    every = Contenders.of(found, found.cluster.memory_bytes, is_all=True)
    assert len(some.skipped_s) and not len(every.skipped_s)
    assert some.form.step_s.min() == every.form.step_s.min()
    assert some.skipped_s.min() > contender.BEHIND * some.form.step_s.min()
    assert len(some.space) + some.num_too_large + len(some.skipped_s) == len(found)
    assert len(every.space) + every.num_too_large == len(found)
    best = every.form.step_s <= contender.BEHIND * every.form.step_s.min()
    assert np.isin(every.form.step_s[best], some.form.step_s).all()


def test_a_look_that_goes_on_finds_what_one_that_never_ended_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contender, "ENOUGH", 8)
    found = space("experts")
    some = Contenders.of(found, found.cluster.memory_bytes)
    every = Contenders.of(found, found.cluster.memory_bytes, is_all=True)
    until_s = float(np.quantile(some.skipped_s, 0.5))
    wider = some.wider(until_s, float("inf"))
    assert len(some.space) < len(wider.space) < len(every.space) and wider.skipped_s.min() > until_s
    assert len(wider.space) + wider.num_too_large + len(wider.skipped_s) == len(found)
    rows = [
        {tuple(row) for row in np.stack([getattr(each.space, axis) for axis in AXES], axis=1).tolist()}
        for each in (some, wider, every)
    ]
    assert rows[0] < rows[1] < rows[2]
    np.testing.assert_array_equal(np.unique(wider.form.step_s)[:50], np.unique(every.form.step_s)[:50])
    whole = some.wider(float("inf"), float("inf"))
    assert not len(whole.skipped_s) and whole.num_too_large == every.num_too_large
    for axis in AXES:
        np.testing.assert_array_equal(getattr(whole.space, axis), getattr(every.space, axis))
    np.testing.assert_allclose(whole.form.step_s, every.form.step_s, rtol=1e-12)


def test_time_ends_the_look_as_soon_as_one_fits_and_what_was_left_counts_as_skipped() -> None:
    found = space("experts")
    whole = Contenders.of(found, found.cluster.memory_bytes, is_all=True)
    ended = Contenders.of(found, found.cluster.memory_bytes, is_all=True, ends_s=0.0)
    assert whole.is_complete and not ended.is_complete
    assert 0 < len(ended.space) < len(whole.space)
    assert len(ended.space) + ended.num_too_large + len(ended.skipped_s) == len(found)
    assert (ended.skipped_s <= ended.form.step_s.min()).any()  # the gap says what may have been left


@pytest.mark.slow  # of small spaces the next one says it always
def test_the_winner_is_that_of_a_search_that_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = (MODEL, Cluster("8xH100"), Workload(24, 4096))
    monkeypatch.setattr(contender, "ENOUGH", 8)
    some = search(*job, fix=MIXED, num_simulated=6)
    monkeypatch.setattr(contender, "ENOUGH", 10**9)
    every = search(*job, fix=MIXED, num_simulated=6)
    assert [each.plan for each in some] == [each.plan for each in every]
    assert some.num_candidates == every.num_candidates and some.optimality_gap == every.optimality_gap
    assert some.num_excluded_by_bound == every.num_excluded_by_bound


@given(
    layers=st.integers(3, 12), name=st.sampled_from(["mixtral-8x7b", "gpt2", "llama-3.1-8b"]), nodes=st.sampled_from([1, 2]),
    batch=st.sampled_from([8, 24, 30]), gigabytes=st.sampled_from([8, 24, 80]),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(8))
def test_a_search_of_any_small_space_finds_what_one_that_skips_nothing_does(
    layers: int, name: str, nodes: int, batch: int, gigabytes: int
) -> None:
    """Plans, their order and their steps, as far as they may be the best; where nothing fits both say so. What varies slower
    plans differs: of a search that skips nothing there are more of them."""
    job = (
        load_model(name).changed(num_layers=layers),
        Cluster(f"{nodes}x4xH100"),
        Workload(batch, 1024),
    )
    options: dict[str, Any] = {"num_simulated": 4, "max_memory_bytes": int(gigabytes * 1e9)}
    options["fix"] = {**MIXED, "cp": 1, "sharding_degree": 0}
    found = []
    for enough in (8, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contender, "ENOUGH", enough)
            if found:  # nor is anything left out for its memory
                patch.setattr(
                    sys.modules[search.__module__],
                    "space_of",
                    lambda *job, capacity_bytes=0, **given: space_of(*job, **given),
                )
            try:
                found.append([(each.plan, each.step.value) for each in search(*job, **options)])
            except OutOfMemoryError:
                found.append([])
    some, every = ([each for each in plans if each[1] <= AS_FAST * plans[0][1]] for plans in found)
    assert some == every


def test_where_nothing_fits_all_are_looked_at() -> None:
    found = space("decoder")
    none = Contenders.of(found, 10**9)
    assert (
        not len(none.space) and none.num_too_large == len(found) and len(none.nearest) == contender.NUM_KEPT
    )
    needed = closed_form(none.nearest, tables_of(none.nearest, is_priced=False)).needed_bytes
    every = closed_form(found, tables_of(found, is_priced=False)).needed_bytes
    assert needed.tolist() == sorted(every.tolist())[: contender.NUM_KEPT]


def test_open_kinds_of_context_parallelism_are_all_looked_at() -> None:
    """And what a part was priced with for a bound is not what another kind of recompute is priced with."""
    job = (MODEL, Cluster("8xH100"), Workload(24, 8192))
    fix = {**MIXED, "recompute": ("selective", "full"), "recompute_blocks": 0, "sharding": "zero1"}
    found, whole = space_of(*job, fix=fix, is_open=True), space_of(*job, fix=fix)
    assert found.num_candidates == len(whole) > len(found) and whole.num_candidates == len(whole)
    assert {len(kinds) for kinds in found.open_contexts.values()} == {1, 3}

    def rows(each: Space) -> list[tuple[int, ...]]:
        return sorted(zip(*(getattr(each, axis).tolist() for axis in AXES), strict=True))

    assert rows(found.decided()) == rows(whole)
    capacity = found.cluster.memory_bytes // 2
    few = Contenders.of(found, capacity, is_all=True)
    form = closed_form(whole, tables_of(whole))
    fits = form.needed_bytes <= capacity
    assert 0 < len(few.space) == fits.sum() and few.num_too_large == (~fits).sum() > 0
    assert np.sort(few.form.step_s) == pytest.approx(np.sort(form.step_s[fits]), rel=1e-12)
    assert np.sort(few.form.needed_bytes) == pytest.approx(np.sort(form.needed_bytes[fits]), rel=1e-12)
