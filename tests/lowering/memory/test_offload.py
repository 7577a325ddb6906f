"""The optimizer's state on the host: where loads and stores stand, what is alive when, and what they cost."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.ir import verify
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.plan.workload import Workload

OFFLOAD = PassOption("offload_optimizer")


def planned(*passes: PassOption, **choices: object) -> Plan:
    """A plan of a small model on GPUs."""
    given = {"pp": 2, "dp": 4, "dtype": "bfloat16", "master_dtype": "float32", **choices}
    return Plan.of(mw.Model("Llama-3.2-1B"), mw.Cluster("8xH100"), Workload(64, 4096), passes=passes, **given)


def test_loads_stand_before_the_first_step_and_stores_behind() -> None:
    program = lower(planned(OFFLOAD, schedule="interleaved_1f1b"), registered()["interleaved_1f1b"])
    names = [program.tables.effects[e].name for e in program.columns.effect[: program.offsets[1]]]
    at = {
        name: [i for i, n in enumerate(names) if n == name] for name in ("LOAD_STATE", "STEP", "STORE_STATE")
    }
    assert [len(found) for found in at.values()] == [2, 2, 2]
    assert max(at["LOAD_STATE"]) < min(at["STEP"]) < max(at["STEP"]) < min(at["STORE_STATE"])
    for host in ("in_order", "asynchronous"):
        verify(program, host)


def test_what_is_on_the_host_is_not_on_the_device() -> None:
    peaks = {}
    for passes in ((), (OFFLOAD,)):
        plan = planned(*passes, sharding="none")
        verified = verify(lower(plan, registered()[plan.schedule]), "asynchronous")
        peaks[bool(passes)] = dict(zip(verified.tiers, verified.peak_bytes.max(axis=0), strict=True))
    assert "host" not in peaks[False] and peaks[True]["host"] > 0
    # the state comes when activations have gone, so the fullest moment has less
    assert peaks[True]["device"] < peaks[False]["device"]


def test_a_master_copy_stays_on_the_device() -> None:
    sizes = {}
    for passes in ((), (OFFLOAD,)):
        plan = planned(*passes, sharding="none")
        sizes[bool(passes)] = {
            row.kind: sum(row.by_index) for row in lower(plan, registered()[plan.schedule]).tables.value_bytes
        }
    state, moved = sizes[False]["optimizer_state"], sizes[True]
    assert moved["host_optimizer_state"] == moved["optimizer_state"] == pytest.approx(state * 2 / 3)
    assert moved["master_copy"] == pytest.approx(state / 3)
    program = lower(planned(OFFLOAD, sharding="none"), registered()["1f1b"])
    moves = [work for work in program.tables.works if work.name in ("LOAD_STATE", "STORE_STATE")]
    assert moves and all(work.bytes == 2 * 4 * work.shape[0] for work in moves)  # two moments in float32


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_loads_wait_for_the_sums_that_leave_a_shard(sharding: str) -> None:
    program = lower(planned(OFFLOAD, sharding=sharding), registered()["1f1b"])
    names = [program.tables.effects[e].name for e in program.columns.effect]
    awaited = {names[behind] for row, behind in program.after.tolist() if names[row] == "LOAD_STATE"}
    assert ("REDUCE_GRAD" in awaited) == (sharding == "zero1") and awaited - {"REDUCE_GRAD"} == {"B"}


def test_it_takes_time_on_the_link_to_the_host() -> None:
    fast, slow = (mw.simulate(planned(*passes)) for passes in ((), (OFFLOAD,)))
    assert slow.metadata["step"]["value"] > fast.metadata["step"]["value"]


def test_a_step_that_may_be_taken_back_is_refused() -> None:
    clip, early = PassOption("clip_gradients"), PassOption("post_validation")
    with pytest.raises(PlanError, match="stored its state on the host"):
        lower(planned(clip, early, OFFLOAD, sharding="none"), registered()["1f1b"])
