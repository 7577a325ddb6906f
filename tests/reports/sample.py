"""Traces for the tests of reports: a small 1F1B pipeline with transfers, reduction and step, replayed by ir."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.text import from_text
from meshwright.ir.timing.replay import replay_program
from meshwright.ir.trace import MemoryCurve, Trace

SECONDS = {"F": 1.0, "B": 2.0, "SEND_F": 0.25, "RECV_F": 0.25, "SEND_B": 0.25, "RECV_B": 0.25}


def pipeline_program(num_devices: int, num_microbatches: int) -> Program:
    """1F1B with one stage a device."""
    lines = [f"meshwright-program 1   axes pp={num_devices}   microbatches {num_microbatches}"]
    for stage in range(num_devices):
        ahead = min(num_microbatches, num_devices - stage)
        names = [f"F{i}" for i in range(ahead)]
        for i in range(num_microbatches):
            names += [f"B{i}"] + ([f"F{ahead + i}"] if ahead + i < num_microbatches else [])
        lines.append(
            f"{stage}: "
            + " ".join(row for name in names for row in _with_transfers(stage, name, num_devices))
        )
    return from_text("\n".join(lines) + "\n")


def _with_transfers(stage: int, name: str, num_devices: int) -> list[str]:
    upstream, downstream = stage > 0, stage < num_devices - 1
    direction = name[0]
    receives, sends = (upstream, downstream) if direction == "F" else (downstream, upstream)
    rows = [f"{stage}RECV_{name}"] if receives else []
    return [*rows, f"{stage}{name}", *([f"{stage}SEND_{name}"] if sends else [])]


def pipeline_trace(
    num_devices: int = 4,
    num_microbatches: int = 8,
    transfer_s: float = 0.25,
    scale: float = 1.0,
    noise: float = 0.0,
    engine: str = "max-plus",
    iterations: int = 1,
    **metadata: Any,
) -> Trace:
    """The pipeline on virtual time; `scale` seconds a forward, `noise` relative and reproducible."""
    program = pipeline_program(num_devices, num_microbatches)
    return trace_of(program, transfer_s, scale, noise, engine, iterations, **metadata)


def trace_of(
    program: Program,
    transfer_s: float = 0.25,
    scale: float = 1.0,
    noise: float = 0.0,
    engine: str = "max-plus",
    iterations: int = 1,
    **metadata: Any,
) -> Trace:
    """Any program on virtual time: F takes 1, B 2, other computes 1, everything else `transfer_s`."""
    names = [effect.name for effect in program.tables.effects]
    of_effect = [
        {"F": 1.0, "B": 2.0}.get(name, 1.0 if effect.kind == Kind.COMPUTE else transfer_s)
        for name, effect in zip(names, program.tables.effects, strict=True)
    ]
    random = np.random.default_rng(7)
    factor = np.clip(1 + noise * random.standard_normal(program.num_rows), 0.3, None)
    seconds = np.array(of_effect)[program.columns.effect] * scale * factor
    latency_s = np.zeros(program.num_rows)
    posted, start, end = replay_program(program, seconds, latency_s, iterations=iterations)
    curves = tuple(_memory(program, start, end, device) for device in range(program.num_lists))
    return Trace(program, posted, start, end, engine, curves, metadata)


def _memory(program: Program, start: np.ndarray, end: np.ndarray, device: int) -> MemoryCurve:
    """1 GB, and 0.2 GB more from the start of each F to the end of its B."""
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    own = program.list_of_row == device
    times = np.concatenate([start[:, own & (names == "F")].ravel(), end[:, own & (names == "B")].ravel()])
    change = np.concatenate(
        [np.full(start[:, own & (names == "F")].size, 2e8), np.full(end[:, own & (names == "B")].size, -2e8)]
    )
    order = np.lexsort((change, times))
    return MemoryCurve(
        device,
        "device",
        np.concatenate([[0.0], times[order]]),
        np.concatenate([[1e9], 1e9 + np.cumsum(change[order])]),
    )
