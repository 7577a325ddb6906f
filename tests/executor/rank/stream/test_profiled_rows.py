"""A training of our own under torch.profiler: its trace has every row of the program, by its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright import api
from meshwright.interop.profiler.profiled_job import read_profile
from meshwright.interop.profiler.profiled_trace import trace_of
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

MODEL = ModelSpec.decoder(4, 64, 4, vocabulary_size=128, max_sequence_length=32)
CASES: tuple[dict[str, Any], ...] = (
    {"pp": 2, "dp": 2, "sharding": "zero1"},
    {"pp": 2, "tp": 2, "passes": ("offload_optimizer",)},
    {"dp": 4, "sharding": "zero3", "pp": 1},
)


@pytest.mark.slow
@pytest.mark.parametrize("choices", CASES)
def test_every_row_is_found_by_its_place(choices: dict[str, Any], tmp_path: Path) -> None:
    plan = Plan.of(MODEL, Cluster("4xcpu"), Workload(8, 32), **{"dp": 1, **choices})
    done = api.run_training(plan, data="random", iterations=2, profiler=tmp_path, measures_memory=False)
    job = read_profile(tmp_path)
    assert done.trace is not None and job.says_rows and job.num_ranks == 4 and job.num_steps == 3
    program = done.trace.program
    for rank in job.ranks:
        first, last = program.offsets[rank.rank : rank.rank + 2].tolist()
        for step in range(job.num_steps):
            ran = [span for span in rank.spans if span.step == step and span.name.place >= 0]
            assert sorted(span.name.place for span in ran) == list(range(last - first))
            for span in ran:
                view = program.row(first + span.name.place)
                said = span.name.name, span.name.kind, span.name.stage
                assert said == (view.name, view.kind, view.stage)
    found = api.compare_profile(done.predicted, tmp_path)
    assert not any("where the plan's program has" in doubt for doubt in found.doubts)
    names = {program.row(row).name for row in range(program.num_rows)}
    assert {each.name for each in found.passes} - {"not named"} == names
    assert job.named_share > 0.99 and trace_of(job).is_profile
