"""`verify`: valid programs pass, single faults are refused or change nothing, and each proof names what is wrong."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from tests.ir.mutation import FAULTS, mutant_of
from tests.ir.random_program import random_orders, random_pipeline

from meshwright.ir.core_vocabulary import ALONG_FIRST_AXIS, CORE, OPERATIONS
from meshwright.ir.judge.operation_check import check_operations
from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import expected_counts, verify
from meshwright.ir.kernel import kernel
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import (
    Duty,
    Effect,
    Exchange,
    Hop,
    Kind,
    Microbatch,
    ParameterGroup,
    Pattern,
    ValueBytes,
    ValueKind,
)
from meshwright.ir.text import from_text, to_text
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.value_space import codes_of
from meshwright.ir.vocabulary import Name, Vocabulary
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
    made, refused = judge_mutants(range(80))
    assert sum(made.values()) >= 400
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


# ------------------------------------------------------------------------------------------------ duties by stage, relays


def in_parts(parts: tuple[int, int], duties: tuple[Duty, ...]) -> Program:
    """Two stages on one device, whose computes have as many parts."""
    split = Effect(Kind.COMPUTE, "split", (), (Pattern("piece", part="row"),))
    words = Vocabulary.of(Name(split, "path"), ValueKind("piece"))
    builder = ProgramBuilder(
        (Axis("pp", 1),), vocabulary=words, paths=((Hop(0, 0), Hop(1, 0)),), microbatches=(Microbatch(1, 1.0),),
        duties=duties,
    )  # fmt: skip
    for stage, num in enumerate(parts):
        for part in range(num):
            builder.add(0, split, stage=stage, part=part)
    return builder.build()


def test_a_name_has_other_parts_on_other_stages() -> None:
    own = (Duty("split", "path", 4, 1, (0,)), Duty("split", "path", 2, 0, (1,)))
    program = in_parts((4, 2), own)
    verify(program)
    read = from_text(to_text(program))
    assert read.tables.duties == tuple(sorted(own)) and read.digest() == program.digest()
    with pytest.raises(ProgramError, match="device 0 has 3 rows of split, its duty is 4"):
        verify(in_parts((3, 2), own))
    with pytest.raises(ProgramError, match="part 2, which split does not take here; it has fewer parts"):
        verify(in_parts((4, 3), own))
    with pytest.raises(ProgramError, match="the program computes split on stage 1, which is no duty"):
        verify(in_parts((4, 2), own[:1]))
    everywhere = in_parts((2, 2), (Duty("split", "path", 2),))
    assert "stages" not in repr(everywhere.tables.duties[0]), "hashes without stages are what they were"
    assert 'duty ["split","path",2,0]\n' in to_text(everywhere)


@pytest.mark.parametrize(
    "duties, words",
    [
        ((Duty("split"), Duty("split", stages=(1,))), "two duties on one stage"),
        ((Duty("split", stages=(0, 1)), Duty("split", stages=(1,))), "two duties on one stage"),
        ((Duty("split", stages=(0,)), Duty("split", "stage", stages=(1,))), "per path and per stage"),
        ((Duty("split", stages=(-1,)),), "count from 0"),
    ],
)
def test_duties_of_a_name_share_the_stages(duties: tuple[Duty, ...], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        verify(in_parts((1, 1), duties))


@pytest.mark.parametrize("per, due", [("stage", [0, 1]), ("device", [0, 1]), ("path", [0, 2])])
def test_a_duty_is_counted_on_its_stages_only(per: str, due: list[int]) -> None:
    assert expected_counts(one(), Duty("X", per, stages=(1,))).tolist() == due


def relay(steps: int, num_tokens: int, changed: int = 0) -> Program:
    """Token parts whose state goes through steps: opened, advanced once a step, closed."""

    def state(part: str, offset: int = 0) -> Pattern:
        return Pattern("state", part=part, part_offset=offset, steps=1 if part == "row" else steps)

    opened = Effect(Kind.COMPUTE, "open", (), (Pattern("q", part="row"), state("first")))
    attend = Effect(
        Kind.COMPUTE, "attend", (Pattern("q", part="outer", steps=steps), state("row")), (state("row", 1),)
    )
    closed = Effect(Kind.COMPUTE, "close", (state("first", steps),), (Pattern("out", part="row"),))
    kinds = (ValueKind("q"), ValueKind("state"), ValueKind("out"))
    words = Vocabulary.of(*(Name(effect, "path") for effect in (opened, attend, closed)), *kinds)
    duties = (Duty("open", "path", num_tokens), Duty("attend", "path", steps * num_tokens, 1))
    builder = ProgramBuilder(
        (Axis("pp", 1),), vocabulary=words, paths=((Hop(0, 0),),), microbatches=(Microbatch(1, 1.0),),
        duties=(*duties, Duty("close", "path", num_tokens)),
    )  # fmt: skip
    for token in range(num_tokens):
        builder.add(0, opened, part=token)
        for step in range(steps):
            builder.add(0, attend, part=token * steps + step + changed * (token == num_tokens - 1))
        builder.add(0, closed, part=token)
    return builder.build()


@pytest.mark.parametrize("rows", [0, kernel.SMALL_ROWS], ids=["compiled", "plain"])
@pytest.mark.parametrize("steps, num_tokens", [(1, 3), (4, 1), (3, 2)])
def test_a_part_is_a_token_part_and_a_step(
    steps: int, num_tokens: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "SMALL_ROWS", rows)
    program = relay(steps, num_tokens)
    wiring = verify(program).wiring
    deps, space = wiring.deps, wiring.deps.space
    q = program.tables.index_of_kind("q")
    for row in (1, program.num_rows - 2):  # attends of the first and of the last token part
        parts = [space.split(int(deps.code[v]))[-1] for v in deps.version[deps.ptr[row]:deps.ptr[row + 1]]
                 if space.kind_of(deps.code[v]) == q]  # fmt: skip
        assert parts == [int(program.columns.part[row]) // steps]
    assert codes_of(program, 1, program.tables.effects[1].reads, space) == [
        int(deps.code[v]) for v in deps.version[deps.ptr[1] : deps.ptr[2]]
    ]
    text = to_text(program)
    assert from_text(text).digest() == program.digest()


def test_a_step_of_another_token_part_is_refused() -> None:
    with pytest.raises(ScheduleError, match="2? ?.*attend.* reads (q|state)"):
        verify(relay(3, 2, changed=1))
    program = relay(3, 2)
    with pytest.raises(ScheduleError, match="reads state"):
        verify(without(program, program.text_of(2)))
    wrong = tuple(
        effect._replace(reads=tuple(p._replace(steps=0) for p in effect.reads))
        for effect in program.tables.effects
    )
    with pytest.raises(ProgramError, match="a relay of 0 steps"):
        verify(program.with_tables(effects=wrong))


# ------------------------------------------------------------------------------------------------ what exchanges do


@pytest.mark.parametrize(
    "algorithm, words",
    [
        ("all_gather", "does not sum for all of its copies"),
        ("all_to_all", "does not sum"),
        ("reduce_scatter", "leaves each device a shard of the sum"),
        ("gossip", "nobody knows what it makes"),
    ],
)
def test_a_reduction_leaves_whole_sums_unless_it_says_otherwise(algorithm: str, words: str) -> None:
    program = one()
    classes = [
        each._replace(algorithm=algorithm) if each.axes == ("dp",) else each
        for each in program.tables.exchanges
    ]
    with pytest.raises(ProgramError, match=words):
        verify(program.with_tables(exchanges=tuple(classes)))


def test_a_tied_table_is_summed_on_all_of_its_stages() -> None:
    groups = [ParameterGroup("tied", (0, 1), 8, ("dp",))]
    program = program_of_orders(
        registered()["1f1b"].orders(2, 2), groups=groups, collapsed=[Axis("dp", 2, False)]
    )
    reduced = ReduceGradients({0: "all_reduce.two_level"})(program)
    verify(Transfers()(OptimizerStep()(reduced)))
    classes = tuple(each._replace(algorithm="reduce_scatter") for each in reduced.tables.exchanges)
    with pytest.raises(ProgramError, match="REDUCE_GRAD of tied .* does not sum for all of its copies"):
        verify(Transfers()(OptimizerStep()(reduced.with_tables(exchanges=classes))))


@pytest.mark.parametrize(
    "name, exchange, words",
    [
        ("REDUCE_NORM", Exchange(("dp",), algorithm="all_gather"), "it is an all_reduce"),
        ("UNSHARD", Exchange(("dp",), algorithm="all_reduce"), "it is an all_gather"),
        ("SUM_SOFTMAX", Exchange(("pp", "dp"), algorithm="ring"), "it is an all_reduce along pp"),
        ("SHARE_OUTPUT", Exchange(("dp",)), "it is an all_gather along pp"),
    ],
)
def test_exchanges_of_the_core_do_what_their_names_say(name: str, exchange: Exchange, words: str) -> None:
    def exchanging(chosen: Exchange) -> Program:
        builder = ProgramBuilder((Axis("pp", 2, False), Axis("dp", 2, False)))
        builder.add(0, CORE.names[name].effect, exchange=chosen, stream="reduce")
        return builder.build()

    with pytest.raises(ProgramError, match=words):
        check_operations(exchanging(exchange))
    right = Exchange(("pp",) if name in ALONG_FIRST_AXIS else ("dp",), algorithm=OPERATIONS[name])
    check_operations(exchanging(right))
    check_operations(exchanging(right._replace(algorithm="")))
