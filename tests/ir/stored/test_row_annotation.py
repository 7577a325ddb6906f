"""What rows are called in profiles is read back as what they are, whatever their names."""

from __future__ import annotations

import pytest

from meshwright.ir.program import Program
from meshwright.ir.stored.row_annotation import RowAnnotation
from meshwright.ir.table import Kind
from meshwright.lowering.lower import lower
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

MODEL = ModelSpec.decoder(4, 64, 4, max_sequence_length=64)


def program(**choices: object) -> Program:
    plan = Plan.of(MODEL, Cluster("4xcpu"), Workload(16, 64), **{"dp": 1, **choices})
    return lower(plan, registered()[plan.schedule], in_segments=True)


@pytest.mark.parametrize(
    "choices",
    [
        {"pp": 2, "dp": 2, "sharding": "zero3"},
        {"pp": 2, "tp": 2, "schedule": "zb_h1"},
        {"pp": 4, "passes": ("offload_optimizer",), "token_parts": 2, "microbatch_size": 2},
    ],
)
def test_every_row_of_a_program_is_itself_again(choices: dict[str, object]) -> None:
    made = program(**choices)
    for row in range(made.num_rows):
        view = made.row(row)
        said = RowAnnotation(view.text, view.position, view.name, view.kind)
        found = RowAnnotation.read(said.said)
        assert found == said and found.stage == view.stage
        assert found.microbatch in (view.microbatch, -1)
        assert (found.microbatch < 0) == (
            view.text == f"{view.stage}{view.name}{'.' * bool(view.part)}{view.part or ''}"
        )


@pytest.mark.parametrize(
    "said",
    ["", "PP:1F3", "PP:1F3 | 17 F", "PP:1F3 | 17 B COMPUTE", "PP:1F3 | 17 F CHEESE", "PP:F3 | 1 F COMPUTE"],
)
def test_what_others_write_is_no_row(said: str) -> None:
    assert RowAnnotation.read(said) is None


def test_a_row_reads_like_torchs_own() -> None:
    assert RowAnnotation("1F3", 17, "F", Kind.COMPUTE).said == "PP:1F3 | 17 F COMPUTE"
