"""The AMD platform's rules: links between members only, waves within their bounds, sentences where a plan breaks a rule."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.evidence.claim.reproduce import reproduce
from meshwright.evidence.claim.system_card import system
from meshwright.planner.advice import device_advice
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.schedules import registered
from meshwright.specs import SpecError
from meshwright.specs.cluster.device import load_device, usual_node
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems.hardware.amd_platform import card as amd_platform

# Widths of which every eighth is a multiple of 256 and gives 4096 tokens nearly whole waves.
GOOD = ModelSpec.decoder(
    8, 8192, 64, intermediate_size=28672, vocabulary_size=131072, max_sequence_length=8192
)
MIXED = {"dtype": "bfloat16", "master_dtype": "float32"}


def advised(model: ModelSpec, *, num_nodes: int = 1, **choices: Any) -> tuple[str, ...]:
    cluster = amd_platform.platform(num_nodes)
    plan = Plan.of(model, cluster, Workload(64, 4096), **{"tp": 8, **MIXED, **choices})
    return amd_platform.advice(plan, cluster)


def test_the_card_says_which_claims_can_fail() -> None:
    card = system("amd_platform")
    assert "2511.17127" in card.paper and not card.is_executed
    predicted = [claim for claim in card.claims if claim.kind == "predicted"]
    assert len(predicted) == 54 and max(claim.tolerance for claim in predicted) <= 0.25
    # What is claimed as predicted is not what was fitted: groups of eight of that machine.
    fitted = {claim.paper_value for claim in card.claims if claim.kind.startswith("fitted")}
    assert len(fitted) == 12 and not fitted & {claim.paper_value for claim in predicted}


def test_claims_stand_as_the_page_tells_them() -> None:
    claims = reproduce("amd_platform")["claims"]
    predicted = [claim for claim in claims if claim["kind"] == "predicted"]
    failed = [claim for claim in claims if not claim["passed"]]
    # messages whose start is not that of the fitted node: up to a mebibyte on two and four, up to 128 on two nodes
    assert len(failed) == 19 and all("all-reduce" in claim["claim"] for claim in failed)
    assert sum("2 nodes" in claim["claim"] for claim in failed) == 13
    assert sum(claim["closer_than_null"] for claim in predicted) >= 0.8 * len(predicted)


@pytest.mark.parametrize("units", [1, 7, 304])
def test_wave_efficiency_has_its_bounds(units: int) -> None:
    shares = [amd_platform.wave_efficiency(tiles, units) for tiles in range(1, 5 * units + 1)]
    assert all(0 < share <= 1 for share in shares)
    for tiles, share in enumerate(shares, 1):
        waves = -(-tiles // units)
        # w waves are never less busy than w-1 full ones and one tile, and full where tiles divide
        assert share > (waves - 1) / waves
        assert (share == 1) == (tiles % units == 0)
        if tiles > 1 and waves == -(-(tiles - 1) // units):  # inside a wave, one more tile raises it
            assert share > shares[tiles - 2]


def test_the_presets_numbers_are_the_platforms() -> None:
    device, node = load_device(amd_platform.DEVICE), usual_node(amd_platform.DEVICE)
    assert (device.num_units, node.num_devices) == (
        amd_platform.NUM_COMPUTE_UNITS,
        amd_platform.GPUS_PER_NODE,
    )
    # its messages of tens of megabytes reach four fifths of the rate of large ones, in groups of any size
    assert node.least_message_bytes is not None
    for num_gpus in (2, 4, 8):
        rates = [
            size / amd_platform.all_reduce_s(num_gpus, size) for size in (node.least_message_bytes, 64e9)
        ]
        assert 0.75 < rates[0] / rates[1] < 1


def test_padding_of_tiles_is_not_work() -> None:
    # 4096 x 4096 in 128 x 128 or 256 x 128: 1024 of 1216, or 512 of 608 slots.
    units = amd_platform.NUM_COMPUTE_UNITS
    assert device_advice.best_waves(4096, 4096, units) == pytest.approx(16 / 19)
    assert device_advice.best_waves(16 * 128, 19 * 128, units) == pytest.approx(1.0)  # 304 tiles of 128 x 128
    # One column more is a column of 16 tiles more, which are a second wave and nearly all padding.
    assert device_advice.best_waves(16 * 128, 19 * 128 + 1, units) == pytest.approx(0.5, abs=0.01)


def test_a_group_uses_the_links_between_its_members() -> None:
    size = 64e9
    rates = {num: 2 * (num - 1) / num * size / amd_platform.all_reduce_s(num, size) for num in (2, 4, 8)}
    assert [rates[num] / rates[2] for num in (4, 8)] == pytest.approx([3, 7], rel=0.01)


def test_two_nodes_have_links_inside_and_nics_between() -> None:
    cluster = amd_platform.platform(2)
    assert cluster.bandwidth_bytes_per_s(8, 15) == 64e9
    assert cluster.bandwidth_bytes_per_s(7, 8) == 50e9
    # Eight chains through a node share no link, seven rings do not either: over nodes a little more goes through.
    one, two = amd_platform.all_reduce_s(8, 16e9), amd_platform.all_reduce_s(16, 16e9, 2)
    assert (15 / 8 / two) / (7 / 4 / one) == pytest.approx(8 / 7, rel=0.02)


def test_zaya1_fits_where_the_paper_trained_it_and_keeps_the_rule_of_multiples() -> None:
    """Data parallelism with ZeRO-1 on 1,024 GPUs of 192 GB, no expert or tensor parallelism (AMD's blog)."""
    cluster, model = amd_platform.platform(128), amd_platform.zaya1()
    plan = Plan.of(model, cluster, Workload(1024, 4096), sharding="zero1", **MIXED)
    memory = estimate_memory(plan, cluster, registered()[plan.schedule])
    assert memory.allocated_bytes + memory.context_bytes < 0.9 * 192e9
    assert not [line for line in amd_platform.advice(plan, cluster) if "multiple of 64" in line]


def test_a_plan_that_suits_the_platform_gets_no_advice() -> None:
    assert advised(GOOD) == ()


def test_a_router_may_be_of_any_size() -> None:
    experts = GOOD.changed(num_experts=8, num_experts_per_token=2, expert_intermediate_size=14336)
    assert not [line for line in advised(experts, tp=1, ep=8) if "router" in line]


def test_degrees_that_leave_links_idle_are_named() -> None:
    assert "uses 1 of 7 links" in " ".join(advised(GOOD, tp=2))
    assert "uses 3 of 7 links" in " ".join(advised(GOOD, tp=4))
    assert not [line for line in advised(GOOD, tp=1) if "links" in line]
    assert "leaves the node" in " ".join(advised(GOOD, num_nodes=2, tp=16))


def test_sizes_that_are_no_multiple_are_named() -> None:
    odd = ModelSpec.decoder(
        8,
        8192,
        64,
        num_kv_heads=8,
        intermediate_size=28672,
        vocabulary_size=50256 + 8,
        max_sequence_length=8192,
    )
    (line,) = [line for line in advised(odd) if "multiple" in line]
    assert "6283" in line


@pytest.mark.parametrize(("sequence", "share"), [(2048, None), (1024, "42%")])
def test_products_that_do_not_fill_waves_are_named(sequence: int, share: str | None) -> None:
    narrow = ModelSpec.decoder(8, 2048, 16, vocabulary_size=131072, max_sequence_length=8192)
    cluster = amd_platform.platform()
    plan = Plan.of(narrow, cluster, Workload(64, sequence), **MIXED)
    # 2048 columns are 256 tiles of 128 x 128 for 2048 tokens, 84 % of 304, and 128 of them for 1024.
    lines = [line for line in amd_platform.advice(plan, cluster) if f"{sequence} x 2048 results" in line]
    assert [share] * len(lines) == [line.split(" keep ")[1].split(" of ")[0] for line in lines]
    assert bool(lines) == (share is not None)


def test_experts_with_few_tokens_wait_for_memory() -> None:
    experts = GOOD.changed(num_experts=8, num_experts_per_token=1, expert_intermediate_size=14336)
    assert not [line for line in advised(experts, tp=1, ep=8) if "tokens an expert" in line]
    many = experts.changed(num_experts=128)
    assert [line for line in advised(many, tp=1, ep=8) if "tokens an expert" in line]


def test_small_gradients_of_replicas_are_named() -> None:
    small = ModelSpec.decoder(8, 512, 8, vocabulary_size=1024, max_sequence_length=8192)
    assert [line for line in advised(small, tp=1) if "one bucket" in line]
    assert not [
        line for line in advised(small, tp=8) if "one bucket" in line
    ]  # no replica, nothing to reduce


def test_other_platforms_are_refused() -> None:
    cluster = Cluster("8xH100")
    plan = Plan.of(GOOD, cluster, Workload(64, 4096), tp=8)
    with pytest.raises(SpecError, match="H100"):
        amd_platform.advice(plan, cluster)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpecError, match="0 tiles"):
        amd_platform.wave_efficiency(0)
    with pytest.raises(SpecError, match="on 9 GPUs"):
        amd_platform.all_reduce_s(9, 1e6)
