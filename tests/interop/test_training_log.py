"""Logs of Megatron-LM and torchtitan, our own JSON and traces, by their content."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshwright import api
from meshwright.interop.training_log import GIBIBYTE, MEGABYTE, read_run
from meshwright.specs.error import SpecError


def megatron_line(number: int, milliseconds: float, batch: int = 128) -> str:
    return (
        f" [2026-01-02 10:00:{number:02d}.123456] iteration {number:8d}/    1000 | consumed samples: {number * batch:12d} |"
        f" elapsed time per iteration (ms): {milliseconds:.1f} | throughput per GPU (TFLOP/s/GPU): 412.3 |"
        f" learning rate: 1.000000E-04 | global batch size: {batch:5d} | lm loss: 8.1E+00 | loss scale: 1.0 |"
    )


def titan_line(step: int, tps: int, clock: str = "", colour: bool = False, rank: int = 0) -> str:
    marks = ("\x1b[31m", "\x1b[32m", "\x1b[39m") if colour else ("", "", "")
    return (
        f"[rank{rank}]:[titan] {clock or '2025-10-02 20:24:00,000'} - root - INFO - {marks[0]}step: {step:2}  "
        f"{marks[1]}loss:  9.4378  grad_norm:  4.0077  memory: 73.32GiB(92.70%)  tps: {tps:,}  tflops: 204.90  "
        f"mfu: 20.72%{marks[2]}"
    )


def write(folder: Path, *lines: str, name: str = "run.log") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_megatron_log(tmp_path: Path) -> None:
    lines = [megatron_line(number, 9000.0 if number == 1 else 1000.0 + number) for number in range(1, 21)]
    lines.insert(
        5,
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 100.5 | max allocated: 2048.00 | reserved: 300.0 "
        "| max reserved: 4096.0",
    )
    run = read_run(write(tmp_path, "> building model", *lines))
    assert (run.source, run.num_warm_up, len(run.step_s), run.global_batch) == ("megatron", 2, 18, 128)
    assert run.median_s == pytest.approx((1.011 + 1.012) / 2)
    assert run.quartiles_s[0] < run.median_s < run.quartiles_s[1]
    assert run.peak_bytes == 2048 * MEGABYTE and run.memory_kind == "allocated"


def test_a_ramp_of_the_batch_is_left_out(tmp_path: Path) -> None:
    lines = [megatron_line(number, 500.0, 64) for number in range(1, 6)]
    lines += [megatron_line(number, 1000.0, 128) for number in range(6, 12)]
    run = read_run(write(tmp_path, *lines))
    assert set(run.step_s) == {1.0} and "128" in run.notes[0]


@pytest.mark.parametrize("colour", [False, True])
def test_a_torchtitan_log_by_its_rate(tmp_path: Path, colour: bool) -> None:
    rates = (217, 10_000, 11_000, 12_000)
    lines = [titan_line(step, tps, colour=colour) for step, tps in zip((1, 10, 20, 30), rates, strict=True)]
    lines += [
        titan_line(30, 12_000, colour=colour, rank=1),
        "validate step: 30  loss: 9.0  memory: 80.0GiB(9%)  tps: 5",
    ]
    run = read_run(write(tmp_path, *lines), tokens_per_device=16_384)
    assert (run.source, run.num_warm_up, run.memory_kind) == ("torchtitan", 1, "reserved")
    assert run.step_s.tolist() == pytest.approx([1.6384, 16_384 / 11_000, 16_384 / 12_000])
    assert run.peak_bytes == round(73.32 * GIBIBYTE)


def test_a_torchtitan_log_by_its_clock(tmp_path: Path) -> None:
    clocks = ("2025-10-02 20:23:53,470", "2025-10-02 20:24:06,470", "2025-10-02 20:24:20,470")
    lines = [titan_line(step, 11_000, clock) for step, clock in zip((1, 10, 20), clocks, strict=True)]
    assert read_run(write(tmp_path, *lines)).step_s.tolist() == pytest.approx([13 / 9, 1.4])


def test_our_own_json(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"step_s": [9.0, 1.0, 1.1, 1.2], "peak_bytes": 5e9}), name="run.json")
    run = read_run(path)
    assert (run.source, run.num_warm_up, run.median_s, run.peak_bytes) == (
        "meshwright json",
        1,
        1.1,
        5_000_000_000,
    )


def test_a_trace(tmp_path: Path) -> None:
    trace = api.simulate(schedule="1f1b", stages=2, microbatches=4, iterations=4)
    trace.save(tmp_path / "run.npz")
    run = read_run(tmp_path / "run.npz")
    assert run.source == "trace" and np.all(run.step_s > 0)
    assert run.median_s == pytest.approx(float(np.diff(trace.end_s.max(axis=1))[-1]))


@pytest.mark.parametrize("text", ["", "step: hello", "{}", '{"step_s": []}', '{"step_s": ["x"]}', "loss: 3"])
def test_nothing_recognised_names_what_is_read(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError) as told:
        read_run(write(tmp_path, text))
    assert "elapsed time per iteration" in str(told.value) and "torchtitan" in str(told.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_run(tmp_path / "nothing.log")
