"""`verify`: valid programs pass, single faults are refused or change nothing, and each proof names what is wrong."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from tests.ir.mutation import FAULTS, mutant_of
from tests.ir.random_program import random_orders, random_pipeline

from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Duty, Microbatch, ParameterGroup, ValueBytes
from meshwright.ir.timing.replay import replay, wire
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import DeadlockError, ProgramError, ScheduleError

REFUSED_SHARE = {"drop": 0.9, "duplicate": 0.9, "retarget": 0.9, "retag": 0.9}


def trained(rng: Random) -> Program:
    """A random pipeline, or a schedule of ours, that ends with reductions and steps."""
    p, m, v = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 2)
    name = rng.choice(("random", "1f1b", "gpipe", "interleaved_1f1b", "zb_h1"))
    if name == "random":
        orders = random_orders(rng, p, m, v, rng.random() < 0.5)
    else:
        orders = registered()[name].orders(p, m)
    stages = 1 + max(c.stage for row in orders for c in row)
    dp = rng.randint(1, 3)
    groups = [
        ParameterGroup(f"g{s}.{k}", (s,), 4, ("dp",)) for s in range(stages) for k in range(rng.randint(1, 2))
    ]
    if stages > 1 and rng.random() < 0.3:
        groups.append(ParameterGroup("tied", (0, stages - 1), 8, ("dp",)))
    program = program_of_orders(orders, groups=groups, collapsed=[Axis("dp", dp, False)])
    if rng.random() < 0.3:
        program = SplitBackward()(program)
    if rng.random() < 0.3:
        program = Recompute()(program)
    program = Transfers()(OptimizerStep()(ReduceGradients()(program)))
    return program.expand("dp") if rng.random() < 0.3 else program


def judge_mutants(seeds: range, names: tuple[str, ...] = tuple(FAULTS)) -> tuple[Counter[str], Counter[str]]:
    """Make one mutant a seed and kind; returns how many there were and how many were refused, by kind."""
    made, refused = Counter[str](), Counter[str]()
    for seed in seeds:
        rng = Random(seed)
        program = trained(rng)
        expected = outputs(program)
        for name in names:
            try:
                mutant = mutant_of(rng, program, name)
            except LookupError:
                continue
            made[name] += 1
            try:
                verify(mutant, rng.choice(HOSTS))
            except ProgramError:  # of the family; anything else is a fault of ours and fails the test
                refused[name] += 1
                continue
            assert outputs(mutant) == expected, f"seed {seed}: an accepted {name} has other outputs"
    return made, refused


def check_shares(made: Counter[str], refused: Counter[str]) -> None:
    for name, share in REFUSED_SHARE.items():
        assert refused[name] >= share * made[name], f"{name}: {refused[name]} of {made[name]} refused"


def test_single_faults_are_refused_or_change_nothing() -> None:
    made, refused = judge_mutants(range(200))
    assert sum(made.values()) >= 1000
    check_shares(made, refused)
    assert refused["swap"] < made["swap"], "many swaps are legal, differently timed programs"
    assert refused["restream"] < made["restream"]


@pytest.mark.slow
def test_ten_thousand_single_faults() -> None:
    made, refused = judge_mutants(range(1000, 2900))
    assert sum(made.values()) >= 10_000
    check_shares(made, refused)


# ------------------------------------------------------------------------------------------------ the proofs


@pytest.mark.parametrize("host", HOSTS)
def test_random_pipelines_are_accepted(host: str) -> None:
    for seed in range(150):
        verify(random_pipeline(Random(seed)), host)


def one(name: str = "1f1b", p: int = 2, m: int = 2) -> Program:
    groups = [ParameterGroup(f"g{s}", (s,), 4, ("dp",)) for s in range(p)]
    program = program_of_orders(
        registered()[name].orders(p, m), groups=groups, collapsed=[Axis("dp", 2, False)]
    )
    return Transfers()(OptimizerStep()(ReduceGradients()(program)))


def row_of(program: Program, text: str) -> int:
    return next(i for i in range(program.num_rows) if program.text_of(i) == text)


def without(program: Program, text: str) -> Program:
    row = row_of(program, text)
    offsets = program.offsets - (np.arange(len(program.offsets)) > program.list_of_row[row])
    return program.reordered(np.delete(np.arange(program.num_rows), row), offsets)


def moved(program: Program, text: str, behind: str) -> Program:
    row, other = row_of(program, text), row_of(program, behind)
    order = [i for i in range(program.num_rows) if i != row]
    order.insert(order.index(other) + 1, row)
    return program.reordered(np.array(order), program.offsets)


@pytest.mark.parametrize(
    "change, error, words",
    [
        (lambda p: without(p, "1RECV_F0"), ProgramError, "1F0|0SEND_F0"),
        (lambda p: without(p, "0SEND_F1"), ProgramError, "1RECV_F1 has no SEND of the same value"),
        (
            lambda p: without(p, "0STEP"),
            ProgramError,
            r"device 0 has 0 rows of STEP, its duty is 1 \(once per stage\)",
        ),
        (lambda p: without(p, "1REDUCE_GRAD"), ScheduleError, "1STEP"),
        (lambda p: without(p, "0B1"), ProgramError, "device 0 has 1 rows of B, its duty is 2"),
        (lambda p: moved(p, "1F1", "1B1"), ScheduleError, "device 1, position .: 1B1 runs before 1F1"),
        (
            lambda p: moved(p, "0B1", "0REDUCE_GRAD"),
            ProgramError,
            "0B1 adds to a weight_gradient.* that 0REDUCE_GRAD has read",
        ),
        (
            lambda p: p.with_tables(microbatches=(Microbatch(1, 0.5), Microbatch(1, 0.4))),
            ProgramError,
            "2 microbatches sum to 0.9; they must sum to 1",
        ),
        (lambda p: p.with_tables(duties=p.tables.duties[:1]), ProgramError, "no duty"),
        (
            lambda p: p.with_tables(groups=tuple(g._replace(replicated=()) for g in p.tables.groups)),
            ProgramError,
            "REDUCE_GRAD",
        ),
        (lambda p: p.with_columns(exchange=np.full(p.num_rows, -1)), ProgramError, "no exchange class"),
        (
            lambda p: p.with_columns(microbatch=p.columns.microbatch + 2),
            ProgramError,
            "microbatch . is not in its table",
        ),
        (
            lambda p: p.with_columns(effect=p.columns.effect + 90),
            ProgramError,
            "effect .* is not in its table",
        ),
        (lambda p: p.with_columns(hop=p.columns.hop - 1), ProgramError, "negative"),
    ],
)
def test_what_is_wrong_is_named(change: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        verify(change(one()))  # type: ignore[operator]


def test_the_same_duty_twice() -> None:
    program = one()
    row = row_of(program, "0F1")
    twice = program.inserted(np.array([row + 1]), program.list_of_row[[row]], program.columns.take([row]))
    with pytest.raises(ProgramError, match="position 4: 0F1 is done a second time"):
        verify(twice)


def test_a_deadlock_shows_the_grid() -> None:
    program = one("1f1b", 2, 2)
    crossed = moved(moved(program, "1SEND_B0", "1SEND_B1"), "0SEND_F1", "0B1")
    with pytest.raises(DeadlockError, match="<-- here"):
        verify(crossed)


# ------------------------------------------------------------------------------------------------ memory

BYTES = (
    ValueBytes("activation", (2.0, 3.0, 5.0), True),
    ValueBytes("gradient", (1.0,), True),
    ValueBytes("saved", (7.0, 11.0), True),
    ValueBytes("pending", (4.0,), True),
    ValueBytes("parameter", (100.0, 50.0)),
    ValueBytes("optimizer_state", (200.0,)),
    ValueBytes("weight_gradient", (100.0,)),
)


def measured_peaks(program: Program, seed: int, iterations: int = 3) -> np.ndarray:
    """Peak bytes a list on one random timeline: a version lives from its writer's post to its last reader's end."""
    wiring = wire(program)
    rng = np.random.default_rng(seed)
    seconds = rng.choice([0.0, 0.1, 1.0, 5.0], program.num_rows)
    posted, _, end = replay(wiring, seconds, np.zeros(program.num_rows), iterations=iterations)
    deps = wiring.deps
    begin: dict[tuple[int, int], float] = {}
    finish: dict[tuple[int, int], float] = {}
    for t in range(iterations):
        for i in range(program.num_rows):
            for v in range(deps.write_ptr[i], deps.write_ptr[i + 1]):
                key = (t, int(deps.root[v]))
                begin[key] = min(begin.get(key, np.inf), posted[t, i])
                finish[key] = max(finish.get(key, 0.0), end[t, i])
            for k in range(deps.ptr[i], deps.ptr[i + 1]):
                key = (t - int(deps.lag[k]), int(deps.root[deps.version[k]]))
                if deps.version[k] >= 0 and key[0] >= 0:
                    finish[key] = max(finish.get(key, 0.0), end[t, i])
    kinds = program.tables.value_kinds
    peaks = np.zeros(program.num_lists)
    writer = deps.writer_of()
    for device in range(program.num_lists):
        own = deps.resident_code[deps.resident_ptr[device] : deps.resident_ptr[device + 1]]
        events = []
        for (t, root), start in begin.items():
            code = int(deps.code[root])
            if (
                program.list_of_row[writer[root]] == device
                and not kinds[int(deps.space.kind_of(code))].carried
            ):
                events += [(start, deps.space.bytes[code]), (finish[t, root], -deps.space.bytes[code])]
        running = np.cumsum([change for _, change in sorted(events)])
        peaks[device] = float(deps.space.bytes[own].sum()) + float(running.max(initial=0.0))
    return peaks


def test_no_timeline_needs_more_memory_than_the_bound() -> None:
    for seed in range(60):
        program = trained(Random(seed)).with_tables(value_bytes=BYTES)
        bound = verify(program).peak_bytes[:, 0]
        for timeline in range(3):
            assert (measured_peaks(program, timeline) <= bound + 1e-6).all(), f"seed {seed}"


def test_the_bound_of_1f1b_is_what_it_keeps() -> None:
    """Saved activations: min(p - stage, m) on the synchronous schedule, never the m of GPipe."""
    saved = (ValueBytes("saved", (1.0,)),)
    bounds = {}
    for name in ("1f1b", "gpipe"):
        program = Transfers()(program_of_orders(registered()[name].orders(4, 8))).with_tables(
            value_bytes=saved
        )
        bounds[name] = verify(program).peak_bytes[:, 0].tolist()
    assert bounds == {"1f1b": [4, 3, 2, 1], "gpipe": [8] * 4}


def test_what_lives_for_ever_counts_throughout() -> None:
    program = one().with_tables(value_bytes=(ValueBytes("parameter", (64.0,)),))
    assert verify(program).peak_of() == 64.0
    assert verify(program).peak_of("no such tier") == 0.0


def test_duties_of_a_device() -> None:
    program = one()
    duties = tuple(Duty("STEP", "device") if d.name == "STEP" else d for d in program.tables.duties)
    verify(program.with_tables(duties=duties))
    with pytest.raises(ProgramError, match="device 0 has 1 rows of STEP, its duty is 2"):
        verify(
            program.with_tables(
                duties=tuple(Duty("STEP", "device", 2) if d.name == "STEP" else d for d in duties)
            )
        )
