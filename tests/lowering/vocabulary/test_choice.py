"""Plans whose vocabulary is split, lowered: passes of all schedules, whole and in pieces, live microbatches, refusals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.covering import covered, product
from tests.golden.text import check_golden
from tests.lowering.plans import lowered

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.table import Kind
from meshwright.ir.text import to_text
from meshwright.lowering.lower import lower
from meshwright.lowering.order import with_works
from meshwright.prediction.memory_estimate import ACTIVATIONS, estimate_memory
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_program
from meshwright.specs import Cluster, ModelSpec, PassOption, Plan, PlanError, Workload
from meshwright.systems.pipeline.vocabulary_parallel.mechanism import PASS_SECONDS

MODEL = ModelSpec.decoder(16, 64, 4, vocabulary_size=130, max_sequence_length=32)
SPLIT = ("one_barrier", "two_barriers", "interlaced")
SCHEDULES = ("1f1b", "gpipe", "zb_h1", "zb_h2", "interleaved_1f1b", "v_half", "v_min", "v_1f1b", "zbv", "dualpipe_v",
             "breadth_first", "hanayo")  # fmt: skip


def plan_of(vocabulary: str, pp: int = 4, dp: int = 1, tp: int = 1, batch: int = 8, **choices: Any) -> Plan:
    """In bfloat16 unless said; `batch` for each replica."""
    cluster = Cluster(f"{pp * dp * tp}xcpu")
    return Plan.of(
        MODEL, cluster, Workload(batch * dp, 32), vocabulary=vocabulary, pp=pp, dp=dp, tp=tp,
        **{"dtype": "bfloat16", **choices},
    )  # fmt: skip


BESIDE: tuple[dict[str, Any], ...] = (
    {},
    {"recompute": "full", "split_backward": True},
    {"dp": 2, "sharding": "zero3"},
    {"dp": 2, "tp": 2},
)
ROWS = list(product({"vocabulary": SPLIT[:2], "schedule": SCHEDULES, "choices": BESIDE}))


@pytest.mark.parametrize(
    ("vocabulary", "schedule", "choices"), covered([tuple(row.values()) for row in ROWS], ROWS), ids=str
)
def test_every_schedule_runs_them_once_a_device_and_microbatch(
    vocabulary: str, schedule: str, choices: dict[str, Any]
) -> None:
    """In pieces, too, where gradients are reduced beside computes or parameters gathered."""
    program = lowered(plan_of(vocabulary, schedule=schedule, **choices))
    verify(program)
    verify(program, "in_order")
    found = Counter((i.device, i.name, i.microbatch) for d in range(4) for i in program.instructions(d))
    for name in ("LOOKUP", "S", "T", "SCATTER", "SHARE_OUTPUT", "SUM_SOFTMAX"):
        assert all(found[device, name, m] == 1 for device in range(4) for m in range(8)), name


@pytest.mark.parametrize("choices", [{}, {"recompute": "full"}, {"dp": 2, "sharding": "zero2"}], ids=str)
@pytest.mark.parametrize(("pp", "batch"), [(2, 1), (4, 8), (8, 3), (3, 9)])
def test_interlaced_steps_stand_between_the_computes_of_1f1b(
    pp: int, batch: int, choices: dict[str, Any]
) -> None:
    program = lowered(plan_of("interlaced", pp=pp, batch=batch, **choices))
    verify(program)
    verify(program, "in_order")
    streams = {
        i.stream for d in range(pp) for i in program.instructions(d) if i.name.startswith(("SUM_", "SHARE_"))
    }
    assert streams == {"compute"}


@pytest.mark.parametrize(
    ("vocabulary", "alive"), [("one_barrier", 9), ("two_barriers", 10), ("interlaced", 12)]
)
def test_as_many_microbatches_are_alive_as_the_estimate_counts(vocabulary: str, alive: int) -> None:
    """p + 1, p + 2 and 1.5 p on the first of eight stages (Yeung et al., arXiv 2411.05288); on all, what is estimated."""
    plan = plan_of(vocabulary, pp=8, batch=32)
    schedule, costs = registered()["1f1b"], FixedCosts(PASS_SECONDS)
    found = metrics.peak_alive(simulate_program(lower(plan, schedule), costs, costs))
    assert found[0] == alive
    plain = plan.changed(vocabulary="ends")
    held = [
        [
            dict(device.holders)[ACTIVATIONS]
            for device in estimate_memory(each, Cluster("8xcpu"), schedule).devices
        ]
        for each in (plan, plain)
    ]
    # the last stage keeps another number of bytes without its logits
    for device in range(7):
        assert held[0][device] / held[1][device] * (8 - device) == pytest.approx(found[device])


@pytest.mark.parametrize("vocabulary", SPLIT[:2])
def test_v_half_keeps_one_or_two_microbatches_more(vocabulary: str) -> None:
    costs = FixedCosts(PASS_SECONDS)
    alive = [
        max(metrics.peak_alive(simulate_program(lower(plan, registered()["v_half"]), costs, costs)))
        for plan in (plan_of(each, pp=8, batch=32, schedule="v_half") for each in ("ends", vocabulary))
    ]
    assert alive[1] - alive[0] == (1 if vocabulary == "one_barrier" else 2)


@pytest.mark.parametrize("vocabulary", SPLIT)
def test_every_device_steps_its_rows_and_holds_their_bytes(vocabulary: str) -> None:
    plan = plan_of(vocabulary, pp=4, dp=2)
    program = lowered(plan, None)
    rows = -(-MODEL.vocabulary_size // 4) * MODEL.hidden_size
    blocks = MODEL.num_parameters - 2 * MODEL.num_head_parameters - MODEL.hidden_size
    sizes = {row.kind: row.by_index for row in program.tables.value_bytes}
    for device in range(4):
        number = blocks // 4 + 2 * rows + (MODEL.hidden_size if device == 3 else 0)
        assert sizes["parameter"][device] == 2 * number
        (step,) = (i for i in program.instructions(device) if i.name == "STEP")
        assert step.work is not None and step.work.shape == (number,)
        (reduction,) = (i for i in program.instructions(device) if i.name == "REDUCE_GRAD")
        later = [
            i.name for i in program.instructions(device) if i.row > reduction.row and i.kind == Kind.COMPUTE
        ]
        assert later == ["STEP"]  # behind the last SCATTER


@pytest.mark.parametrize("vocabulary", SPLIT)
def test_golden(vocabulary: str) -> None:
    program = with_works(lowered(plan_of(vocabulary, pp=2, batch=2), None), {})
    program = program.with_tables(value_bytes=())  # the order is what is kept here
    check_golden(f"1f1b_vocabulary_{vocabulary}_p2_m2", to_text(program))


def test_without_a_pipeline_nothing_is_split() -> None:
    one, plain = (lowered(plan_of(each, pp=1, dp=4)) for each in ("one_barrier", "ends"))
    assert one.digest() == plain.digest()


def test_what_it_cannot_stand_beside_is_refused() -> None:
    with pytest.raises(PlanError, match="connects its stages"):
        lowered(plan_of("one_barrier", passes=(PassOption("connect_stages", {"layer_edges": "0>15"}),)))
    with pytest.raises(
        PlanError, match=r"dualpipe has stage \d on devices \d and \d, and the vocabulary is split"
    ):
        lowered(plan_of("two_barriers", schedule="dualpipe"))
