"""A prediction beside profiles: of its own rows nothing differs; of a job that is slower it is told where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import api
from meshwright.evidence.profile_comparison import compare_profile
from meshwright.interop.profiler.profiled_job import read_profile
from meshwright.ir.judge import metrics
from meshwright.ir.program import Axis, Program
from meshwright.ir.stored.row_annotation import RowAnnotation
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from tests.interop.profiler.kineto import Kineto, data_parallel_job
from tests.reports.sample import pipeline_trace

MICRO = 1e6
KERNELS = {Kind.SEND: "ncclDevKernel_SendRecv()", Kind.RECEIVE: "ncclDevKernel_SendRecv()"}


def torchs(program: Program, row: int) -> str:
    """As torch's pipelines call a row."""
    return f"PP:{program.text_of(row)}"


def ours(program: Program, row: int) -> str:
    """As our executor calls it."""
    view = program.row(row)
    return RowAnnotation(view.text, view.position, view.name, view.kind).said


def profile_of(
    trace: Trace, folder: Path, slow: float = 1.0, said: Callable[[Program, int], str] = torchs
) -> None:
    """What a profiler would have written of three steps of a program."""
    program = trace.program
    for rank in range(program.num_lists):
        made = Kineto(rank, program.num_lists)
        for step in range(3):
            at = MICRO * slow * metrics.span_s(trace) * step
            made.annotate(f"ProfilerStep#{step}", at, 0.5)
            for row in range(int(program.offsets[rank]), int(program.offsets[rank + 1])):
                kind = program.row(row).kind
                start, end = (MICRO * slow * times[-1][row] for times in (trace.start_s, trace.end_s))
                made.annotate(said(program, row), at + row * 1e-3, 1e-3)
                streams = {Kind.COMPUTE: 7, Kind.SEND: 8, Kind.RECEIVE: 9}
                kernel = KERNELS.get(kind, "gemm")
                made.kernel(kernel, at + row * 1e-3 + 2e-4, at + start, end - start, streams[kind])
        made.save(folder)


def test_of_its_own_rows_nothing_differs(tmp_path: Path) -> None:
    trace = pipeline_trace()
    profile_of(trace, tmp_path)
    found = compare_profile(trace, read_profile(tmp_path))
    assert found.job.named_share == pytest.approx(1.0) and not found.doubts[1:]
    for each in found.quantities():
        if each.predicted:
            assert each.measured == pytest.approx(each.predicted, rel=1e-6), each.name
    for rank in found.ranks:
        assert rank.predicted is not None
        assert rank.measured.compute_s == pytest.approx(rank.predicted.compute_s, rel=1e-6)


def test_a_run_of_our_executor_is_compared_by_every_name_of_its_rows(tmp_path: Path) -> None:
    trace = pipeline_trace()
    profile_of(trace, tmp_path, said=ours)
    job = read_profile(tmp_path)
    found = compare_profile(trace, job)
    names = {trace.program.row(row).name for row in range(trace.program.num_rows)}
    assert job.says_rows and {each.name for each in found.passes} == names and not found.doubts[1:]
    for each in found.passes:
        assert each.measured == pytest.approx(each.predicted, rel=1e-6), each.name

    fewer = replace(trace, program=trace.program, metadata={})
    columns = trace.program.columns
    stages = columns.stage.copy()
    stages[0] += 1
    other = replace(fewer, program=replace(trace.program, columns=columns.with_column("stage", stages)))
    assert any("row 0" in doubt for doubt in compare_profile(other, job).doubts)


def test_a_slower_job_is_slower_everywhere_and_idles_alike(tmp_path: Path) -> None:
    trace = pipeline_trace()
    profile_of(trace, tmp_path, slow=1.5)
    found = {each.name: each for each in compare_profile(trace, read_profile(tmp_path)).quantities()}
    assert found["step"].measured == pytest.approx(1.5 * metrics.span_s(trace), rel=1e-6)
    assert found["forward"].measured == pytest.approx(1.5 * (found["forward"].predicted or 0), rel=1e-6)
    assert found["bubble"].measured == pytest.approx(found["bubble"].predicted, rel=1e-6)


def test_another_number_of_devices_is_said(tmp_path: Path) -> None:
    trace = pipeline_trace()
    files = data_parallel_job(tmp_path)
    wide = replace(trace.program, axes=(*trace.program.axes, Axis("tp", 8, materialised=False)))
    found = compare_profile(replace(trace, program=wide), read_profile(files))
    assert "no rank is set beside a device" in found.doubts[0]
    assert all(each.predicted is None for each in found.ranks)


def test_a_plan_is_simulated_and_its_kernels_are_set_beside_the_profile(tmp_path: Path) -> None:
    plan = api.plan("gpt2", "2xH100", global_batch=8, seq=1024, fix={"dp": 2, "recompute": "none"})[0].plan
    data_parallel_job(tmp_path)
    found = api.compare_profile(plan, tmp_path)
    rows = {each.name: each for each in found.quantities()}
    assert rows["step"].low is not None and rows["step"].measured == pytest.approx(1e-3)
    assert rows["matrix products"].measured == pytest.approx(450e-6) and rows["matrix products"].predicted
    assert rows["attention"].measured == pytest.approx(50e-6)
    assert len(found.ranks) == 2 and all(each.predicted is not None for each in found.ranks)
