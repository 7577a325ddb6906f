"""Rules about devices and links: named where something is lost, silent after their own remedy, silent where unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.planner.advice import device_advice as rules
from meshwright.planner.advice.device_advice import Advice, device_advice, least_message_bytes
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Plan, SpecError, Workload
from meshwright.specs.cluster.cluster import Level

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def model(**fields: Any) -> ModelSpec:
    given = {"num_kv_heads": 8, "intermediate_size": 14336, "vocabulary_size": 131072, **fields}
    return ModelSpec.decoder(4, 4096, 32, max_sequence_length=8192, **given)


def given(
    cluster: str | ClusterSpec, of: ModelSpec | None = None, sequence: int = 4096, **choices: Any
) -> tuple[Plan, ClusterSpec]:
    where = Cluster(cluster)
    return Plan.of(of or model(), where, Workload(64, sequence), **{**MIXED, **choices}), where


def kinds(found: tuple[Advice, ...]) -> set[str]:
    return {each.kind for each in found}


def test_what_suits_gets_no_advice() -> None:
    assert (
        device_advice(*given("8xH100", sequence=8192, microbatch_size=2, tp=4, sequence_parallel=True)) == ()
    )


def test_a_full_wave_is_named_by_nobody_and_one_tile_more_is() -> None:
    # H100 has 132 units: 1536 x 1408 results are 12 x 11 tiles of 128 x 128.
    assert rules.best_waves(1536, 1408, 132) == 1.0
    assert rules.best_waves(1537, 1408, 132) < 0.95
    assert max(rules.best_waves(m, n, 132) for m in range(64, 700, 37) for n in range(64, 700, 41)) <= 1.0


def test_narrow_products_leave_units_idle() -> None:
    narrow, cluster = given("8xH100", sequence=1024, tp=8)
    found = [each for each in rules.idle_units(narrow, cluster) if each.sentence.startswith("output")]
    # 1024 x 4096 by 128 x 128 are 256 tiles of 264 places: whole enough; keys and queries of tp=8 are 768 wide
    assert not found
    (qkv,) = [each for each in rules.idle_units(narrow, cluster) if each.sentence.startswith("qkv")]
    assert qkv.numbers["share"] == pytest.approx(8 * 6 / 132) and "132" in qkv.sentence


def test_an_odd_width_is_named_and_padding_ends_it() -> None:
    odd, cluster = given("8xH100", model(intermediate_size=14336 + 8 * 40), tp=8)
    found = list(rules.odd_sizes(odd, cluster))
    assert found and all("multiple of 64" in each.sentence for each in found)
    assert not list(rules.odd_sizes(*given("8xH100", model(intermediate_size=14336 + 8 * 64), tp=8)))


def test_the_padded_vocabulary_is_the_least_that_divides() -> None:
    plan, cluster = given("8xH100", model(vocabulary_size=128256), tp=8)
    (found,) = rules.odd_vocabulary(plan, cluster)
    padded = int(found.numbers["padded"])
    assert padded % (128 * 8) == 0 and 0 < padded - 128256 < 128 * 8
    assert not list(rules.odd_vocabulary(*given("8xH100", model(vocabulary_size=padded), tp=8)))
    assert not list(rules.odd_vocabulary(*given("8xH100", model(vocabulary_size=128256), tp=2)))


def test_links_idle_only_where_each_pair_has_its_own() -> None:
    (found,) = rules.idle_links(*given("8xMI300X", tp=2))
    assert "uses 1 of 7 links" in found.sentence and found.sentence.endswith("tp=1 or tp=8 leaves none idle")
    (odd,) = rules.idle_links(
        *given("8xMI300X", ModelSpec.decoder(4, 2560, 20, max_sequence_length=8192), tp=2)
    )
    assert odd.sentence.endswith("tp=1 leaves none idle"), "twenty heads are not eight parts"
    assert found.numbers["idle_share"] == pytest.approx(6 / 7)
    for whole in (1, 8):
        assert not list(rules.idle_links(*given("8xMI300X", tp=whole)))
    assert not list(rules.idle_links(*given("8xH100", tp=2)))
    (outside,) = rules.idle_links(*given("2x8xH100", model(num_kv_heads=32), tp=16))
    assert "leaves the node of 8" in outside.sentence


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
def test_the_size_of_a_message_on_a_line_is_found(share: float) -> None:
    latency_s, bytes_per_s = 1e-5, 4e11
    half = latency_s * bytes_per_s

    def rate(size: float) -> float:
        return size / (latency_s + size / bytes_per_s)

    wanted = share * rate(rules.LARGE_MESSAGE_BYTES) / bytes_per_s
    exact = half * wanted / (1 - wanted)  # where x = S / (S + half)
    assert exact <= least_message_bytes(share, rate) <= exact * rules.SIZE_STEP * 1.0001
    with pytest.raises(SpecError, match="share of 2"):
        least_message_bytes(2, rate)


def test_small_messages_of_tp_are_named_until_they_are_as_large_as_advised() -> None:
    plan, cluster = given("8xH100", sequence=1024, tp=8, sequence_parallel=True)
    (small,) = [each for each in rules.small_messages(plan, cluster) if each.kind == "messages"]
    assert small.numbers["bytes"] == 1024 * 4096 * 2 < small.numbers["least_bytes"]
    assert small.numbers["share"] < rules.GOOD_SHARE
    size = 2 ** int(1 + small.numbers["least_bytes"] // small.numbers["bytes"]).bit_length()
    larger = plan.changed(microbatch_size=min(size, 64))
    assert not [each for each in rules.small_messages(larger, cluster) if each.kind == "messages"]


def test_small_gradients_are_named_where_replicas_reduce_them() -> None:
    small = ModelSpec.decoder(4, 512, 8, vocabulary_size=1024, max_sequence_length=8192)
    (found,) = rules.small_messages(*given("8xH100", small))
    # 4 d^2 of attention, 8 d^2 of the MLP, and what norms and biases add, in float32
    assert found.kind == "buckets" and found.numbers["bytes"] == pytest.approx(12 * 512**2 * 4, rel=0.01)
    assert not [
        each for each in rules.small_messages(*given("8xH100", small, tp=8)) if each.kind == "buckets"
    ]


def test_a_measured_least_message_goes_before_the_curve() -> None:
    plan, cluster = given("8xMI300X", sequence=2048, tp=8)
    (found,) = rules.small_messages(plan, cluster)
    assert found.numbers["least_bytes"] == 32e6 and "from 32 MB on" in found.sentence
    assert not list(rules.small_messages(*given("8xMI300X", sequence=4096, tp=8)))


def test_few_tokens_an_expert_wait_for_memory() -> None:
    experts = model().changed(num_experts=64, num_experts_per_token=1, expert_intermediate_size=14336)
    assert list(rules.starved_experts(*given("8xH100", experts, sequence=1024, ep=8)))
    few = experts.changed(num_experts=8)
    assert not list(rules.starved_experts(*given("8xH100", few, sequence=8192, ep=8)))


def test_of_a_device_that_nobody_described_only_its_messages_are_judged() -> None:
    known = Cluster("8xH100")
    mine = replace(known.devices[0], name="mine", num_units=None, multiple=None)
    cluster = ClusterSpec("ours", (mine,) * 8, (Level("node", 8, 4.5e11, 2e-6),))
    odd = model(vocabulary_size=128256, intermediate_size=14336 + 8 * 40)
    assert kinds(device_advice(*given(cluster, odd, sequence=1024, tp=8))) <= {"messages", "buckets"}
    assert kinds(device_advice(*given(known, odd, sequence=1024, tp=8))) >= {
        "multiple",
        "vocabulary",
        "waves",
    }
