"""The probes on gloo: what they compute is what one process computes, and their measured traces keep the start rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.ir.program import Program
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from tests.probes.offloaded_step import offloaded_step
from tests.probes.ring_step import ring_step
from tests.probes.sharded_layer import sharded_layer
from tests.probes.stale_exchange import stale_exchange
from tests.probes.uneven_all_to_all import uneven_all_to_all

torch = pytest.importorskip("torch")

from meshwright.executor import run_program  # noqa: E402
from meshwright.executor.rank.handler import ValueName  # noqa: E402


def run(program: Program, initial: list[dict[str, Any]], keep: str, pool: Any, iterations: int = 1) -> Any:
    """Values kept and the trace; names of values are ``kind`` or ``kind.part``."""
    values = [
        {ValueName(key.partition(".")[0], part=int(key.partition(".")[2] or 0)): v for key, v in rank.items()}
        for rank in initial
    ]
    result = run_program(
        program,
        initial_values=values,
        iterations=iterations,
        keep=(keep,),
        pool=pool,
        dtype="float64",
    )
    check_trace(result.trace)
    return [[rank[key] for key in sorted(rank)] for rank in result.values]


def check_trace(trace: Trace) -> None:
    """Every row has a start and an end, streams keep program order, no read starts before its writer ended."""
    program = trace.program
    assert np.isfinite(trace.start_s).all() and (trace.end_s >= trace.start_s).all()
    wiring = wire(program)
    deps = wiring.deps
    reader = np.repeat(np.arange(program.num_rows), np.diff(deps.ptr))
    for t in range(trace.num_iterations):
        reads = (deps.version >= 0) & (deps.lag <= t)
        for k in np.flatnonzero(reads):
            assert trace.end_s[t - deps.lag[k], deps.row[k]] <= trace.start_s[t, reader[k]]
        for s in range(len(wiring.stream_ptr) - 1):
            rows = wiring.stream_rows[wiring.stream_ptr[s] : wiring.stream_ptr[s + 1]]
            assert (np.diff(trace.posted_s[t, rows]) >= 0).all()


@pytest.mark.parametrize("streams, batched", [("four", False), ("one", True)])
def test_a_ring_step_is_full_attention(gloo_pool: Any, streams: str, batched: bool) -> None:
    from tests.probes.ring_step_handlers import full_attention

    generator = torch.Generator().manual_seed(0)
    query = [torch.randn(6, 8, generator=generator, dtype=torch.float64) for _ in range(4)]
    key_value = [torch.randn(2, 6, 8, generator=generator, dtype=torch.float64) for _ in range(4)]
    initial = [{"query": q, "key_value": kv} for q, kv in zip(query, key_value, strict=True)]
    got = run(ring_step(2, streams, batched), initial, "attended", gloo_pool, 2)
    keys, values = torch.cat(key_value, dim=1)
    for rank in range(4):
        assert (got[rank][0] - full_attention(query[rank], keys, values)).abs().max() <= 1e-12


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_sharded_layers_are_whole_layers(gloo_pool: Any, slots: int) -> None:
    generator = torch.Generator().manual_seed(1)
    layers = [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(6)]
    hidden = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    initial = [
        {
            "hidden": hidden[rank],
            **{f"layer_shard.{k}": layers[k][2 * rank : 2 * rank + 2].clone() for k in range(6)},
        }
        for rank in range(2)
    ]
    got = run(sharded_layer(slots), initial, "hidden", gloo_pool)
    for rank in range(2):
        expected = hidden[rank]
        for layer in layers:
            expected = torch.tanh(expected @ layer)
        assert (got[rank][0] - expected).abs().max() <= 1e-14


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_a_stale_exchange_uses_the_neighbours_value_of_one_iteration_ago(
    gloo_pool: Any, iterations: int
) -> None:
    """Exactly: the recurrence in one process, with the halo of the iteration before; -1 before the first."""
    patch = [torch.full((2,), 10.0 * (rank + 1), dtype=torch.float64) for rank in range(3)]
    initial = [
        {"patch": patch[rank], "halo": torch.full((2,), -1.0, dtype=torch.float64)} for rank in range(3)
    ]
    got = run(stale_exchange(), initial, "used", gloo_pool, iterations)
    features = [[torch.full((2,), -1.0, dtype=torch.float64)] * 3]  # of the iteration before the first
    for _ in range(iterations):
        features.append([3 * p + 1 for p in patch])
        patch = [features[-1][rank] + 2 * features[-2][rank - 1] for rank in range(3)]
    for rank in range(3):
        assert torch.equal(got[rank][0], features[-2][rank - 1])


def test_the_synchronous_exchange_uses_the_neighbours_value_of_now(gloo_pool: Any) -> None:
    patch = [torch.full((2,), 10.0 * (rank + 1), dtype=torch.float64) for rank in range(3)]
    got = run(stale_exchange(age=0), [{"patch": p} for p in patch], "used", gloo_pool)
    for rank in range(3):
        assert torch.equal(got[rank][0], 3 * patch[rank - 1] + 1)


@pytest.mark.parametrize("case", ["even", "uneven", "all to one"])
def test_tokens_come_back_from_their_experts(gloo_pool: Any, case: str) -> None:
    from tests.probes.uneven_all_to_all_handlers import expert_of

    generator = torch.Generator().manual_seed(2)
    tokens = [torch.randn(6, 3, generator=generator, dtype=torch.float64) for _ in range(4)]
    for rank, mine in enumerate(tokens):
        goes = {
            "even": torch.arange(6) + rank,
            "uneven": torch.arange(6) // (rank + 1),
            "all to one": torch.full((6,), 2),
        }
        mine[:, 0] = goes[case].to(torch.float64)
    got = run(
        uneven_all_to_all(),
        [{"tokens": mine} for mine in tokens],
        "combined",
        gloo_pool,
        2,
    )
    for rank in range(4):
        experts = expert_of(tokens[rank], 4)[:, None]
        assert torch.equal(got[rank][0], tokens[rank] * (experts + 2) + experts)


@pytest.mark.parametrize("reads_slot", [False, True])
def test_offloaded_units_are_stepped_in_place(gloo_pool: Any, reads_slot: bool) -> None:
    state = {f"host_state.{k}": torch.full((3,), float(k), dtype=torch.float64) for k in range(8)}
    got = run(offloaded_step(8, reads_slot), [state], "host_state", gloo_pool, 3)
    for unit in range(8):
        expected = float(unit)
        for _ in range(3):
            expected = expected * 2 + unit
        assert got[0][unit].tolist() == [expected] * 3
