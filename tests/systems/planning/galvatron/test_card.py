"""Galvatron: pieces of the cost model by hand, the dynamic programme against all plans, the published plans."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from meshwright.specs.error import OutOfMemoryError, SpecError
from meshwright.systems.planning.galvatron import card as galvatron
from meshwright.systems.planning.galvatron import cost as costs
from meshwright.systems.planning.galvatron import mechanism
from meshwright.systems.planning.galvatron.card import published_job
from meshwright.systems.planning.galvatron.cost import (
    MIB,
    EndMemory,
    HardwareProfile,
    MessageTimes,
    ModelProfile,
    ProfiledJob,
    Strategy,
    fit,
)
from meshwright.systems.planning.galvatron.mechanism import SearchCorner, spaces, strategies


@pytest.fixture
def job() -> ProfiledJob:
    """Round numbers: a layer of 1 s and 8 MiB, messages of 1 MiB/s, samples of 1 MiB at a boundary, 4 devices."""
    model = ModelProfile(
        num_layers=4,
        hidden_size=1024,
        sequence_length=512,
        layer_forward_s=1.0,
        ends_forward_s=2.0,
        layer_parameter_bytes=8.0 * MIB,
        layer_activation_bytes=16.0 * MIB,
        layer_checkpoint_bytes=2.0 * MIB,
        ends=EndMemory(80.0 * MIB, 12.0 * MIB),
        first=EndMemory(40.0 * MIB, 4.0 * MIB),
        last=EndMemory(40.0 * MIB, 8.0 * MIB),
    )
    flat = MessageTimes({}, 1.0 / MIB, 0.0)
    hardware = HardwareProfile(
        num_devices=4,
        all_reduce_per_s={(4, True): float(MIB), (2, True): float(MIB), (2, False): MIB / 2},
        send_per_s={2: float(MIB), 4: float(MIB)},
        all_gather={2: flat, 4: flat},
        all_to_all={2: flat, 4: flat},
        slowdown=1.25,
    )
    return ProfiledJob(model, hardware, global_batch=16, num_microbatches=4, memory_bytes=2 * 2**30)


def test_what_overlaps_is_slowed_down_and_the_rest_is_not() -> None:
    assert costs.overlapped_s(10.0, 4.0, 1.25) == pytest.approx(4 * 1.25 + 6)
    assert costs.overlapped_s(4.0, 10.0, 1.25) == pytest.approx(4 * 1.25 + 6)
    assert costs.overlapped_s(4.0, 10.0, 1.0) == pytest.approx(10.0)
    assert costs.overlapped_s(4.0, 0.0, 1.25) == pytest.approx(4.0)


def test_the_message_of_the_ends_hides_slow_computation() -> None:
    assert costs.behind_message_s(2.0, 5.0, 1.25) == pytest.approx(5.0)  # 2 s take 2.5 beside a message
    assert costs.behind_message_s(8.0, 5.0, 1.25) == pytest.approx(5.0 + 4.0)  # 4 of 8 s done when it ends


def test_state_ratios_by_hand(job: ProfiledJob) -> None:
    zero2, zero3 = Strategy(1, 2, 1, 2, "zero2"), Strategy(1, 2, 1, 2, "zero3")
    once, at_once = replace(job, num_microbatches=1), replace(job, is_reduce_async=True)
    assert costs.state_ratio(job, zero3) == pytest.approx(1.25 * 0.503)
    assert costs.state_ratio(job, zero2) == pytest.approx(1.25 * (0.875 * 0.503 + 0.125))
    assert costs.state_ratio(once, zero3) == pytest.approx(0.503)
    assert costs.state_ratio(once, zero2) == pytest.approx(0.875 * 0.503 + 0.125)
    assert costs.state_ratio(at_once, zero3) == pytest.approx(0.875 * 0.503 + 0.125)
    assert costs.state_ratio(at_once, zero2) == pytest.approx(0.75 * 0.503 + 0.25)
    assert costs.state_ratio(job, Strategy(1, 4, 1, 1)) == 1.0


def test_a_replicated_layer_by_hand(job: ProfiledJob) -> None:
    # One sample a device. Backward 2 s beside an all-reduce of 2 x 3/4 x 8 MiB in 16 bits = 6 s.
    strategy = Strategy(1, 1, 1, 4, "zero2")
    assert costs.layer_s(job, strategy) == pytest.approx(1 + 2 * 1.25 + 4)
    assert costs.layer_s(job, strategy, is_reducing=False) == pytest.approx(1 + 2)
    zero3 = replace(strategy, sharding="zero3", is_recomputed=True)
    assert costs.layer_s(job, zero3) == pytest.approx(1 + 3 * 1.25 + 3 + 6 / 2)


def test_a_tensor_parallel_layer_by_hand(job: ProfiledJob) -> None:
    # Four samples over four devices: 1 s; six gathers of 4 MiB, with recompute nine. No replica, so no reduction.
    assert costs.layer_s(job, Strategy(1, 4, 1, 1)) == pytest.approx(1 + 2 + 6 * 4)
    assert costs.layer_s(job, Strategy(1, 4, 1, 1, "none", True)) == pytest.approx(1 + 3 + 9 * 4)
    assert costs.layer_s(job, Strategy(1, 1, 4, 1)) == pytest.approx(1 + 2 + 4 * 4)
    # Replicas of a tensor-parallel layer are not consecutive: 2 x 1/2 x 4 MiB / 2 = 2 MiB at half the rate, 4 s.
    assert costs.layer_s(job, Strategy(1, 2, 1, 2, "zero2")) == pytest.approx(1 + 2 * 1.25 + 2 + 6 * 2)


def test_a_stage_pays_its_share_of_the_sends(job: ProfiledJob) -> None:
    # Two stages, four layers, two samples a device: 2 x 2 x 2 MiB in all, a quarter of it for one layer.
    with_send = costs.layer_s(job, Strategy(2, 1, 1, 2, "zero2"), is_reducing=False)
    assert with_send == pytest.approx(2 + 4 + 8 / 4)


def test_memory_of_a_layer_by_hand(job: ProfiledJob) -> None:
    # States 4 x 8 MiB / 2; activations of two samples over two devices.
    assert costs.layer_bytes(job, Strategy(1, 2, 1, 2)) / MIB == pytest.approx(16 + 16)
    assert costs.layer_bytes(job, Strategy(1, 2, 1, 2, "none", True)) / MIB == pytest.approx(16 + 2)
    # 1F1B holds two microbatches on the first of two stages and one on the last; GPipe all four.
    two = Strategy(2, 2, 1, 1)
    assert [costs.layer_bytes(job, two, stage) / MIB for stage in (0, 1)] == pytest.approx([16 + 64, 16 + 32])
    assert costs.layer_bytes(replace(job, schedule="gpipe"), two, 1) / MIB == pytest.approx(16 + 128)


def test_ends_by_hand(job: ProfiledJob) -> None:
    assert np.array(costs.ends_bytes(job, Strategy(1, 4, 1, 1))) / MIB == pytest.approx([1024 + 20 + 12])
    stages = np.array(costs.ends_bytes(job, Strategy(4, 1, 1, 1))) / MIB
    assert stages == pytest.approx([1024 + 40 + 4 * 4 * 4, 1024, 1024, 1024 + 40 + 4 * 8])
    # 2 s forward, 4 s backward, a gather of 4 MiB before and after.
    assert costs.ends_s(job, Strategy(1, 4, 1, 1)) == pytest.approx([2 + 4 + 2 * 4])
    assert costs.ends_s(job, Strategy(4, 1, 1, 1)) == pytest.approx([4 + 8, 0, 0, 4 + 8])
    # ZeRO-3: half of 3/4 of 80 MiB / 8 = 3.75 s moved in each direction; of 2 s forward 2.5 are hidden behind it.
    zero3 = costs.ends_s(job, Strategy(1, 1, 1, 4, "zero3"))
    assert zero3 == pytest.approx([3.75 + 3.75 + (4 * 1.25 - 3.75) / 1.25])


def test_switches_cost_a_message_or_a_bias(job: ProfiledJob) -> None:
    plain, wide = Strategy(1, 1, 1, 4, "zero2"), Strategy(1, 2, 1, 2, "zero2")
    # 1/2 of two samples of 1 MiB at 1 MiB/s, in the repository's weight.
    assert costs.switch_s(job, plain, wide) == pytest.approx(costs.RESHARD_WEIGHT * 1.0)
    assert costs.switch_s(job, plain, plain) == 0.0
    zero3, recomputed = replace(plain, sharding="zero3"), replace(plain, is_recomputed=True)
    both = replace(zero3, is_recomputed=True)
    assert [costs.switch_s(job, plain, s) for s in (zero3, recomputed, both)] == [1e-9, 2e-9, 3e-9]
    assert [costs.switch_s(job, s, plain) for s in (zero3, recomputed, both)] == [0.0, 0.0, 0.0]
    assert costs.switch_s(job, zero3, recomputed) == 1e-9 and costs.switch_s(job, recomputed, zero3) == 0.0
    assert costs.switch_s(job, wide, Strategy(1, 1, 2, 2, "zero2")) == 1e-10


def test_the_pipeline_rule_by_hand() -> None:
    assert costs.pipeline_s([2.0], [2.5], 8) == pytest.approx(16.0 + 0.5)
    assert costs.pipeline_s([1.0, 1.0], [1.0, 1.0], 4) == pytest.approx(5.0)
    assert costs.pipeline_s([1.0, 2.0], [1.0, 2.0], 4) == pytest.approx(3 + 3 * 2)  # the last sets the pace
    assert costs.pipeline_s([2.0, 1.0], [2.0, 1.0], 4) == pytest.approx(2 + 2 * 3)  # the first does


def test_the_allocator_keeps_a_fifth_of_large_memory() -> None:
    assert costs.usable_bytes(36 * 2**30) == (36864 - 7372) * MIB
    assert costs.usable_bytes(20 * 2**30) == 20 * 2**30


def test_fits_find_their_polynomial_and_measured_sizes_win() -> None:
    x = [4096.0, 8192.0, 16384.0, 32768.0]
    assert fit(x, [2e-9 * v * v + 3e-3 * v + 5 for v in x], 2) == pytest.approx((2e-9, 3e-3, 5.0))
    times = MessageTimes.of([1.0, 2.0, 3.0], [1.0, 3.5, 3.0])  # line: 1.0 x + 0.5
    assert times.time_s(2.0) == 3.5
    assert times.time_s(4.0) == pytest.approx(4.5)


def test_strategies_are_written_as_the_repository_does() -> None:
    texts = {"1-1-8f-c": Strategy(1, 1, 1, 8, "zero3", True), "1-4*-2": Strategy(1, 4, 1, 2, "zero2")}
    texts["2-2*-2-sp"] = Strategy(2, 1, 2, 2, "zero2")
    assert {text: str(strategy) for text, strategy in texts.items()} == {text: text for text in texts}


def test_the_space_multiplies_out_and_names_each_strategy_once(job: ProfiledJob) -> None:
    for space in spaces(job):
        found = strategies(4, job.microbatch_samples, space)
        assert len(set(found)) == len(found) and list(found) == sorted(found)
        for s in found:
            assert s.pp * s.tp * s.sp * s.dp == 4 and min(s.tp, s.sp) == 1 and s.dp <= 4
    whole = strategies(4, job.microbatch_samples, SearchCorner(1, 4, True, True))
    # 4 without a degree; tensor and Ulysses 4 each of degree 2; 2 each of degree 4, where no replica is left
    assert len(whole) == 4 + 2 * 4 + 2 * 2


@pytest.mark.parametrize("seed", range(8))
def test_the_dynamic_programme_finds_what_trying_all_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    layers_s, switches_s = random.uniform(1, 3, 4), random.uniform(0, 1, (4, 4))
    layers_mib, num_layers = random.integers(0, 9, 4), 4
    limits = [-1, 0, 7, 15, 40]

    def seconds(choice: tuple[int, ...] | list[int]) -> float:
        return float(
            layers_s[list(choice)].sum() + sum(switches_s[a, b] for a, b in itertools.pairwise(choice))
        )

    found = mechanism.best_layers(layers_s, switches_s, layers_mib, num_layers, limits)
    for limit, choice in zip(limits, found, strict=True):
        fitting = [
            c for c in itertools.product(range(4), repeat=num_layers) if layers_mib[list(c)].sum() <= limit
        ]
        assert (choice is None) == (not fitting)
        if choice is not None:
            assert layers_mib[choice].sum() <= limit
            assert seconds(choice) == pytest.approx(min(map(seconds, fitting)))


@pytest.mark.parametrize("is_layerwise", [True, False])
@pytest.mark.parametrize("num_microbatches", [2, 4, 16])
def test_what_is_skipped_would_not_have_won(
    job: ProfiledJob, monkeypatch: pytest.MonkeyPatch, num_microbatches: int, is_layerwise: bool
) -> None:
    job = replace(job, num_microbatches=num_microbatches)
    found = galvatron.search(job, is_layerwise=is_layerwise)
    monkeypatch.setattr(mechanism, "_bound_s", lambda *_: 0.0)
    assert galvatron.search(job, is_layerwise=is_layerwise) == found


# One and two stages; tensor parallel, ZeRO-3 and Ulysses; below and above the limit of the allocator's cache.
@pytest.mark.parametrize(("num_microbatches", "memory_gib"), [(32, 19), (32, 20), (32, 36), (64, 48)])
def test_the_plan_fits_every_stage(num_microbatches: int, memory_gib: int) -> None:
    job = published_job(num_microbatches, memory_gib=memory_gib)
    plan = galvatron.search(job)
    layers = iter(plan.layers)
    ends = costs.ends_bytes(job, plan.ends)
    for stage, num_layers in enumerate(plan.layers_per_stage):
        of_stage = [costs.layer_bytes(job, next(layers), stage) for _ in range(num_layers)]
        assert sum(of_stage) + ends[stage] <= costs.usable_bytes(job.memory_bytes)
    assert next(layers, None) is None
    assert plan.step_s == pytest.approx(mechanism.step_s(job, plan.layers, plan.ends))


@pytest.mark.slow
def test_more_memory_is_never_slower_and_a_choice_per_layer_helps() -> None:
    steps = [galvatron.search(published_job(32, memory_gib=m)).step_s for m in (24, 36, 48)]
    assert steps == sorted(steps, reverse=True)
    assert 1.05 * steps[1] < galvatron.search(published_job(32), is_layerwise=False).step_s


def test_the_published_layerwise_plan() -> None:
    plan = galvatron.published_plan(32, "layer by layer")
    assert [str(s) for s in plan.layers] == ["1-4*-2f-c"] * 14 + ["1-4*-2f"] * 12 + ["1-4*-2"] * 2
    assert plan.layers_per_stage == (28,) and plan.ends == Strategy(1, 8, 1, 1)
    assert galvatron.samples_per_s(32, "layer by layer") == pytest.approx(2.6485091403918064, rel=1e-8)


def test_the_published_plan_of_one_strategy() -> None:
    plan = galvatron.published_plan(8, "one strategy")
    assert {str(s) for s in plan.layers} == {"1-1-8f-c"} and len(plan.layers) == 28
    assert plan.ends.sharding == "zero3" and plan.ends.tp == 1
    assert galvatron.samples_per_s(8, "one strategy") == pytest.approx(2.5246283459057333, rel=1e-8)


def test_what_cannot_be_is_refused(job: ProfiledJob) -> None:
    with pytest.raises(SpecError, match="divides the batch"):
        replace(job, num_microbatches=3)
    with pytest.raises(SpecError, match="power of two"):
        replace(job, hardware=replace(job.hardware, num_devices=6))
    with pytest.raises(OutOfMemoryError, match="no strategy fits"):
        galvatron.search(replace(job, memory_bytes=2**30))
