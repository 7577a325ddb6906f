"""Figures of a profiled job against what its trace was written to say, names, clocks, and its `Trace`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.interop.profiler.kineto import ALL_REDUCE, ENGINE, GEMM, Kineto, data_parallel_job

from meshwright.interop.profiler.chrome_file import read_chrome
from meshwright.interop.profiler.profiled_job import read_profile
from meshwright.interop.profiler.profiled_trace import trace_of
from meshwright.interop.profiler.rank_spans import RankSpan, spans_of
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from meshwright.specs.error import SpecError

US = 1e-6


def spans(made: Kineto, folder: Path) -> list[RankSpan]:
    return list(spans_of(read_chrome(made.save(folder)), 0).spans)


def names(made: Kineto, folder: Path) -> list[str]:
    return [span.name.name for span in spans(made, folder)]


def test_a_step_is_what_was_written(tmp_path: Path) -> None:
    job = read_profile(data_parallel_job(tmp_path))
    first, second = job.figures()
    assert job.step_s == pytest.approx(1000 * US) and job.num_steps == 4 and job.num_ranks == 2
    assert first.used.compute_s == pytest.approx(740 * US) and first.used.bubble == pytest.approx(0.26)
    assert first.used.exchange_s == pytest.approx(300 * US)
    assert first.used.exposed_s == pytest.approx(100 * US)  # from 700 to 800
    assert first.names == pytest.approx(
        {
            "B": 400 * US,
            "ALL_REDUCE": 300 * US,
            "F": 200 * US,
            "STEP": 100 * US,
            "OTHER": 40 * US,
            "STORE": 5 * US,
        }
    )
    assert first.works == pytest.approx(
        {"matmul": 450 * US, "stream": 200 * US, "attention": 50 * US, "other": 40 * US}
    )
    assert second.names == pytest.approx(first.names)
    assert job.named_share == pytest.approx(1 - 40 / 1045)


def test_clocks_are_set_by_what_ends_together(tmp_path: Path) -> None:
    """A rank whose host says 1.5 ms less; and another base than the first's."""
    files = data_parallel_job(tmp_path, slow=30, behind_us=1500)
    assert read_profile(files).offsets_s == pytest.approx([0.0, 1500 * US])
    later = Kineto(1, 2, base_ns=4_000_000)
    later.rows = [{**row, "ts": row["ts"] - 3000} for row in _rows_of(files[1])]
    files[1] = later.save(tmp_path)
    assert read_profile(files).offsets_s == pytest.approx([0.0, 4500 * US])


def _rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return rows


def test_where_no_collective_sets_a_clock_it_is_said(tmp_path: Path) -> None:
    for rank in range(2):
        made = Kineto(rank, 2)
        made.kernel(GEMM, 1, 5, 10)
        made.save(tmp_path)
    job = read_profile(tmp_path)
    assert any("no collective sets the clocks of 1 of 2" in note for note in job.notes)
    assert any("ProfilerStep#" in note for note in job.notes)


def test_annotations_name_what_they_launch(tmp_path: Path) -> None:
    made = Kineto()
    made.annotate("PP:1F3", 0, 10)
    made.kernel(GEMM, 1, 20, 5)
    made.annotate("PP:1SEND_F3", 11, 5)
    made.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 12, 30, 5, stream=9)
    made.annotate("FSDP::all_gather (layers.1)", 17, 5)
    made.kernel("ncclDevKernel_AllGather_RING_LL()", 18, 36, 5, stream=9)
    made.annotate("## forward ##", 23, 9)
    made.kernel(GEMM, 24, 42, 5)
    found = spans(made, tmp_path)
    assert [(span.name.name, span.name.kind, span.name.stage, span.name.microbatch) for span in found] == [
        ("F", Kind.COMPUTE, 1, 3),
        ("SEND_F", Kind.SEND, 1, 3),
        ("UNSHARD", Kind.COLLECTIVE, -1, -1),
        ("F", Kind.COMPUTE, -1, -1),
    ]


def test_autograd_says_forward_backward_and_recompute(tmp_path: Path) -> None:
    """What backward visits is forward; the same inside of backward runs again."""
    made = Kineto()
    made.operator("aten::linear", 0, 10)
    made.operator("aten::addmm", 1, 8, forward=True)
    made.kernel(GEMM, 2, 20, 5)
    made.operator("aten::randn", 12, 3)
    made.kernel("normal_kernel", 13, 26, 5)
    made.operator("autograd::engine::evaluate_function: CheckpointFunctionBackward", 30, 30, ENGINE)
    made.operator("aten::linear", 31, 10, ENGINE)
    made.operator("aten::addmm", 32, 8, ENGINE, forward=True)
    made.kernel(GEMM, 33, 50, 5, thread=ENGINE)
    made.operator("aten::mm", 45, 5, ENGINE)
    made.kernel(GEMM, 46, 60, 5, thread=ENGINE)
    assert names(made, tmp_path) == ["F", "OTHER", "R", "B"]


def test_nothing_is_guessed(tmp_path: Path) -> None:
    """A kernel whose launch is not there, one in an annotation nobody knows, an NCCL kernel that says nothing."""
    made = Kineto()
    made.annotate("my clever thing", 0, 10)
    made.kernel(GEMM, 1, 20, 5)
    made.event("kernel", GEMM, 30, 5, 7, correlation=999)
    made.kernel("ncclKernel_Mystery", 2, 40, 5, stream=9)
    assert [(span.name.name, span.name.source) for span in spans(made, tmp_path)] == [("OTHER", "")] * 3


def test_kernels_without_a_launch_have_the_annotation_on_their_stream(tmp_path: Path) -> None:
    made = Kineto()
    made.event("gpu_user_annotation", "Optimizer.step#AdamW.step", 20, 10, 7)
    for row in (20.0, 25.0, 31.0):
        made.event("kernel", "k", row, 5, 7)
    assert names(made, tmp_path) == ["STEP", "STEP", "OTHER"]


@pytest.mark.parametrize(
    ("kernel", "args", "name"),
    [
        (ALL_REDUCE, {}, "ALL_REDUCE"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", {}, "ALL_REDUCE"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL()", {}, "REDUCE_SCATTER"),
        ("ncclDevKernel_SendRecv()", {}, "SEND_RECEIVE"),
        ("ncclDevKernel_SendRecv()", {"Collective name": "alltoallv"}, "ALL_TO_ALL"),
        ("ncclDevKernel_SendRecv()", {"Collective name": "send"}, "SEND"),
        ("ncclDevKernel_AllGather_RING_LL()", {"Collective name": "_allgather_base"}, "ALL_GATHER"),
    ],
)
def test_collectives_are_called_what_they_are(
    tmp_path: Path, kernel: str, args: dict[str, str], name: str
) -> None:
    made = Kineto()
    made.kernel(kernel, 0, 5, 5, **args)
    assert names(made, tmp_path) == [name]


def test_rows_of_a_trace_are_runs_of_one_name(tmp_path: Path) -> None:
    trace = trace_of(read_profile(data_parallel_job(tmp_path)))
    program = trace.program
    rows = [program.text_of(row) for row in range(int(program.offsets[1]))]
    assert rows == ["0F", "0B", "0ALL_REDUCE", "0STEP", "0STORE", "0OTHER"]
    assert trace.num_iterations == 4 and trace.is_measured and program.num_lists == 2
    assert (trace.end_s - trace.start_s)[0, :3] == pytest.approx([200 * US, 400 * US, 300 * US])
    trace.save(tmp_path / "p.npz")
    assert Trace.load(tmp_path / "p.npz").digest == trace.digest


def test_steps_with_other_rows_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    made = Kineto()
    for step in range(3):
        made.annotate(f"ProfilerStep#{step}", 100 * step, 99)
        made.kernel(GEMM, 100 * step + 1, 100 * step + 10, 50)
    made.kernel(ALL_REDUCE, 202, 270, 5, stream=9)
    trace = trace_of(read_profile(made.save(tmp_path)))
    assert trace.num_iterations == 2
    assert "2 of 3 steps are drawn, which have the same rows" in trace.metadata["profile"]["notes"]


def test_steps_are_the_same_by_their_number(tmp_path: Path) -> None:
    """One rank's profiler began a step later, and a step in which nothing ran is none."""
    for rank in range(2):
        made = Kineto(rank, 2)
        for step in range(rank, 3 + rank):
            made.annotate(f"ProfilerStep#{step}", 100 * step, 99)
            if step < 3:
                made.kernel(GEMM, 100 * step + 1, 100 * step + 10, 50 + step)
        made.save(tmp_path)
    trace = trace_of(read_profile(tmp_path))
    assert (trace.end_s - trace.start_s).round(9).tolist() == [[51e-6, 51e-6], [52e-6, 52e-6]]
    other = Kineto(1, 2)
    other.annotate("ProfilerStep#9", 900, 99)
    other.kernel(GEMM, 901, 910, 50)
    other.save(tmp_path)
    with pytest.raises(SpecError, match="one and the same step"):
        trace_of(read_profile(tmp_path))


def test_ranks_have_a_file_each(tmp_path: Path) -> None:
    files = data_parallel_job(tmp_path)
    with pytest.raises(SpecError, match="are both of rank 0"):
        read_profile([files[0], files[0]])
    nobody = Kineto(None)
    nobody.kernel(GEMM, 1, 2, 3)
    with pytest.raises(SpecError, match="says no rank"):
        read_profile([files[0], nobody.save(tmp_path)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match="no trace in it"):
        read_profile(tmp_path / "empty")


def test_a_step_of_torch_itself_is_read(tmp_path: Path) -> None:
    """PyTorch's profiler on this machine, a model without annotations of its own."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, schedule

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    path = tmp_path / "host.pt.trace.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=3),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as running:
        for _ in range(5):
            model(torch.ones(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            running.step()
    job = read_profile(path)
    found = job.figures()[0]
    assert job.num_steps == 3 and job.named_share > 0.5
    assert min(found.names[name] for name in ("F", "B", "STEP")) > 0
    assert 0 < found.used.compute_s <= job.ranks[0].spans[-1].end_s and not found.works
