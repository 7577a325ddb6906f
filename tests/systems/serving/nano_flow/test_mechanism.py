"""A step in nano-batches is never slower than the batch, whole where nothing can be won, and refused where it cannot be."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.simulated_case import of_8b, program

from meshwright.serving.policy.limits import Limits
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.step_overhead import StepOverhead
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.serving.nano_flow.mechanism import NanoFlow, NanoSteps, representative

MIXED = BatchShape.of([(0, 1024)], 1024, 1024 * 800)
LIMITS = Limits(2048, 1024, 4096)
WIDE = ModelSpec.decoder(4, 8192, 64, num_kv_heads=8, intermediate_size=28672, vocabulary_size=32000)


@cache
def steps(tp: int, pp: int = 1) -> NanoSteps:
    """Of a small model, with pipelines of two nano-batches."""
    found = NanoFlow(most=2).of(program(tp, pp, "1x8xA100-80"), LIMITS)
    assert isinstance(found, NanoSteps)
    return found


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([(1, 1), (8, 1), (4, 2)]),
    st.integers(0, 1500),
    st.integers(0, 1500),
    st.sampled_from([200, 900, 3000]),
)
def test_never_slower_than_the_batch(degrees: tuple[int, int], chunk: int, decodes: int, seen: int) -> None:
    batch = BatchShape.of([(0, chunk)] if chunk else (), decodes, decodes * seen)
    found, whole = steps(*degrees).step(batch), steps(*degrees).program.step(batch)
    assert found.latency_s <= whole.latency_s * (1 + 1e-9)
    assert found.period_s <= whole.period_s * (1 + 1e-9)


def test_something_is_won_where_three_resources_are_used() -> None:
    assert steps(8).step(MIXED).latency_s < 0.97 * steps(8).program.step(MIXED).latency_s
    assert steps(4, 2).step(MIXED).latency_s < 0.99 * steps(4, 2).program.step(MIXED).latency_s


def test_a_batch_that_computes_nearly_all_the_time_runs_whole() -> None:
    """A prompt on one device: more than 95 % of its step are products. And a batch of less than two tiles is not cut."""
    own = NanoFlow(most=2).of(program(1, 1, "1x8xA100-80", WIDE), LIMITS)
    assert isinstance(own, NanoSteps)
    for batch in (BatchShape.of([(0, 2048)]), BatchShape.of((), 100, 30_000)):
        assert own.step(batch).latency_s == pytest.approx(own.program.step(batch).latency_s)
    line = own.lines[0].period.line
    taken = line.seconds(BatchShape.of([(0, 2048)]))
    computed = sum(s for place, s in zip(line.places, taken, strict=True) if place.resource == "compute")
    assert computed > 0.95 * taken.sum()


def test_nano_batches_that_do_not_overlap_are_slower() -> None:
    alone = NanoSteps(steps(8).program, NanoFlow(most=2, overlaps=False))
    assert alone.step(MIXED).latency_s > 1.03 * steps(8).program.step(MIXED).latency_s


def test_the_host_and_disks_work_beside_the_devices() -> None:
    """A host that is faster than the devices costs nothing, a slower one is waited for; so are disks, to which 2 x 8 heads
    x 128 numbers x 2 bytes of each block and token go."""
    own = steps(8)
    device_s = own.step(MIXED).latency_s
    for host_s in (device_s / 2, device_s * 3):
        slow = replace(own.program, overhead=StepOverhead(host_s))
        assert NanoSteps(slow, own.how).step(MIXED).latency_s == pytest.approx(max(device_s, host_s))
    rate = 1e9
    on_disk = NanoSteps(own.program, replace(own.how, disk_bytes_per_s=rate)).step(MIXED).latency_s
    assert on_disk == pytest.approx(max(device_s, MIXED.num_tokens * 4 * 2 * 8 * 128 * 2 / rate))


def test_alike_batches_have_one_pipeline() -> None:
    near = [representative(MIXED._replace(num_context=1024 * seen)) for seen in (760, 800, 860)]
    assert len(set(near)) == 1 and near[0].num_tokens == 2048
    assert representative(BatchShape.of((), 2048, 2048 * 800)) != near[0]


def test_what_cannot_run_so_is_refused() -> None:
    on_cpu, fetched = program(1, 1, "2xcpu"), replace(of_8b(), weights="./mine.py:Window")
    for own, why in ((on_cpu, "one kernel after the other"), (fetched, "weights=./mine.py:Window")):
        with pytest.raises(PlanError, match=why):
            NanoFlow().of(own, LIMITS)
