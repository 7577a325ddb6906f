"""Random valid programs: pipelines from random legal orders of computes, and general programs of every kind of row.

Both are built by walking one global order, so every list, stream and batch is consistent with it: they are legal and
free of deadlock by construction. What a walk cannot promise (a ring that a batch fills twice) is left in on purpose:
every fast path has to agree with the reference interpreter about that too.
"""

from __future__ import annotations

from random import Random

import numpy as np

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Microbatch, ParameterGroup, Pattern, ValueKind, Work
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import Compute, Orders

# --------------------------------------------------------------------------------------------- pipelines


def random_orders(rng: Random, p: int, m: int, v: int, split: bool = False) -> Orders:
    """A random legal order of computes: a random topological order of all of them, cut by device."""
    stages = p * v
    device_of = random_placement(rng, p, v)
    backward = ("I", "W") if split else ("B",)
    waiting: dict[Compute, int] = {}
    behind: dict[Compute, list[Compute]] = {}
    for stage in range(stages):
        for microbatch in range(m):
            f = Compute("F", stage, microbatch)
            b = Compute(backward[0], stage, microbatch)
            waits = {f: [Compute("F", stage - 1, microbatch)] if stage else []}
            waits[b] = [f] + ([Compute(backward[0], stage + 1, microbatch)] if stage + 1 < stages else [])
            if split:
                waits[Compute("W", stage, microbatch)] = [b]
            for compute, earlier in waits.items():
                waiting[compute] = len(earlier)
                for other in earlier:
                    behind.setdefault(other, []).append(compute)
    ready = [compute for compute, count in waiting.items() if not count]
    orders: Orders = [[] for _ in range(p)]
    greedy = rng.random()  # how much a walk prefers what has just become possible: deep and wide orders
    while ready:
        place = len(ready) - 1 if rng.random() < greedy else rng.randrange(len(ready))
        compute = ready.pop(place)
        orders[device_of[compute.stage]].append(compute)
        for later in behind.get(compute, []):
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    return orders


def random_placement(rng: Random, p: int, v: int) -> list[int]:
    """Device of every stage: round the devices, there and back, or anywhere."""
    kind = rng.randrange(3)
    if kind == 0:
        return [stage % p for stage in range(p * v)]
    if kind == 1:
        return [(stage % p) if (stage // p) % 2 == 0 else p - 1 - stage % p for stage in range(p * v)]
    anywhere = [stage % p for stage in range(p * v)]
    rng.shuffle(anywhere)
    return anywhere


def random_pipeline(rng: Random, max_devices: int = 4, max_microbatches: int = 5) -> Program:
    """A random legal order of computes through a random choice of passes."""
    p, m, v = rng.randint(1, max_devices), rng.randint(1, max_microbatches), rng.randint(1, 3)
    split = rng.random() < 0.4
    orders = random_orders(rng, p, m, v, split)
    collapsed = [Axis("dp", rng.randint(1, 3), False)] if rng.random() < 0.5 else []
    weights = [rng.randint(1, 5) for _ in range(m)]
    microbatches = [Microbatch(w, w / sum(weights)) for w in weights]
    groups = random_groups(rng, p * v, tuple(axis.name for axis in collapsed))
    program = program_of_orders(orders, microbatches=microbatches, groups=groups, collapsed=collapsed)
    if not split and rng.random() < 0.3:
        program = SplitBackward()(program)
    if rng.random() < 0.4:
        stages = None if rng.random() < 0.5 else tuple(s for s in range(p * v) if rng.random() < 0.5) or (0,)
        program = Recompute(stages)(program)
    if groups and rng.random() < 0.7:
        program = OptimizerStep()(ReduceGradients()(program))
    program = Transfers()(program)
    if collapsed and rng.random() < 0.5:
        program = program.expand("dp")
    return program


def random_groups(rng: Random, num_stages: int, axes: tuple[str, ...]) -> tuple[ParameterGroup, ...]:
    """No groups, or one to two a stage, the first and the last stage sometimes tied."""
    if rng.random() < 0.3:
        return ()
    groups = [
        ParameterGroup(f"g{stage}.{k}", (stage,), 4 * rng.randint(1, 9), axes)
        for stage in range(num_stages)
        for k in range(rng.randint(1, 2))
    ]
    if num_stages > 1 and rng.random() < 0.3:
        groups.append(ParameterGroup("tied", (0, num_stages - 1), 8, axes))
    return tuple(groups)


# --------------------------------------------------------------------------------------------- general programs

KINDS = {
    "plain": ValueKind("plain", index="none", microbatch=False),
    "kept": ValueKind("kept", index="none", microbatch=False, carried=True),
    "total": ValueKind("total", index="none", microbatch=False, accumulates=True),
    "inbox": ValueKind("inbox", index="none", microbatch=False),
}
LOCAL = (
    (Kind.COMPUTE, "compute"),
    (Kind.LOAD, "load"),
    (Kind.STORE, "store"),
    (Kind.COPY, "copy"),
    (Kind.CALL, "host"),
)
PARTS = 5


class RandomWalk:
    """Appends rows to the lists of a mesh in one global order; remembers what every device may read."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.ring = rng.choice((0, 0, 1, 2, 3))
        self.axes = rng.choice(
            [
                [Axis("a", rng.randint(1, 4))],
                [Axis("a", 2), Axis("b", 2)],
                [Axis("a", rng.randint(2, 3)), Axis("c", 2, False)],
            ]
        )
        self.lists = int(np.prod([axis.size for axis in self.axes if axis.materialised]))
        kinds = {**KINDS, "inbox": KINDS["inbox"]._replace(ring=self.ring)}
        self.builder = ProgramBuilder(
            self.axes, value_kinds=tuple(kinds.values()), microbatches=(Microbatch(1, 1.0),)
        )
        self.held: list[set[tuple[str, int]]] = [
            {("kept", k) for k in range(PARTS)} for _ in range(self.lists)
        ]
        self.inbox: list[list[int]] = [[] for _ in range(self.lists)]  # parts, in the order of their writes
        self.written: list[set[tuple[str, int]]] = [set() for _ in range(self.lists)]
        self.lengths = [0] * self.lists
        self.batches = 0

    def pattern(self, kind: str, part: int, age: int = 0) -> Pattern:
        return Pattern(kind, index="none", part_offset=part, age=age)

    def readable(self, device: int) -> list[tuple[str, int]]:
        """What a row of the device may read now: what is held, and what its ring still has."""
        recent = self.inbox[device][-self.ring :] if self.ring else self.inbox[device]
        return sorted(self.held[device]) + sorted({("inbox", part) for part in recent})

    def some_reads(self, device: int, low: int = 0) -> tuple[Pattern, ...]:
        choice = self.readable(device)
        reads = [
            self.pattern(*one) for one in self.rng.sample(choice, min(len(choice), self.rng.randint(low, 3)))
        ]
        old = sorted(self.written[device])
        if old and self.rng.random() < 0.15:
            kind, part = self.rng.choice(old)
            reads.append(self.pattern(kind, part, self.rng.randint(1, 3)))
        return tuple(reads)

    def wrote(self, device: int, kind: str, part: int) -> None:
        if kind == "inbox":
            self.inbox[device].append(part)
        else:
            self.held[device].add((kind, part))
            self.written[device].add((kind, part))

    def add(
        self, device: int, effect: Effect, stream: str, exchange: Exchange | None = None, batch: int = 0
    ) -> None:
        rng, length = self.rng, self.lengths[device]
        after = (
            tuple(sorted(rng.sample(range(length), min(length, 1))))
            if rng.random() < 0.1 and not batch
            else ()
        )
        work = Work(effect.name, share=1 / rng.randint(1, 3)) if rng.random() < 0.5 else None
        self.builder.add(
            device,
            effect,
            stream=stream,
            exchange=exchange,
            batch=batch,
            after=after,
            work=work,
            part=rng.randint(0, 1),
        )
        self.lengths[device] += 1

    def local(self) -> None:
        """One row that stays on its device."""
        device = self.rng.randrange(self.lists)
        kind, stream = self.rng.choice(LOCAL) if self.rng.random() < 0.5 else LOCAL[0]
        reads = self.some_reads(device)
        target, part = self.rng.choice(("plain", "kept", "total")), self.rng.randrange(PARTS)
        self.add(device, Effect(kind, f"{kind.name}_{target}", reads, (self.pattern(target, part),)), stream)
        self.wrote(device, target, part)

    def pair(self) -> tuple[int, int, Exchange, int] | None:
        """A source, a target, the class between them, and a value that the source has."""
        axis = self.rng.choice(self.axes)
        if not axis.materialised or axis.size < 2:
            return None
        source = self.rng.randrange(self.lists)
        strides = {"a": self.lists // self.axes[0].size, "b": 1}
        stride = strides[axis.name]
        own = source // stride % axis.size
        shift = self.rng.randrange(1, axis.size)
        to = (own + shift) % axis.size
        target = source + (to - own) * stride
        cyclic = self.rng.random() < 0.3
        exchange = Exchange((axis.name,), None, shift) if cyclic else Exchange((axis.name,), (own, to))
        values = [part for kind, part in self.readable(source) if kind == "plain"]
        return (source, target, exchange, self.rng.choice(values)) if values else None

    def transfer(self) -> None:
        """A SEND and its RECEIVE, on streams of their own, one shared one, or one a peer."""
        chosen = self.pair()
        if chosen is None:
            return self.local()
        source, target, exchange, part = chosen
        send, receive, into = self.ends(part, self.some_reads(source)[:1])
        style = self.rng.randrange(3)
        streams = [("wire", "wire"), ("out", "in"), (f"send/{target}", f"receive/{source}")][style]
        self.add(source, send, streams[0], exchange)
        self.add(target, receive, streams[1], exchange)
        return self.wrote(target, "inbox", into)

    def ends(self, part: int, more: tuple[Pattern, ...] = ()) -> tuple[Effect, Effect, int]:
        """Effects of the two ends that move one value into a part of the inbox."""
        into, value = self.rng.randrange(PARTS), self.pattern("plain", part)
        send = Effect(Kind.SEND, "GIVE", (value, *more))
        return send, Effect(Kind.RECEIVE, "TAKE", (), (self.pattern("inbox", into),), moves=value), into

    def batch(self) -> None:
        """Two or three transfers whose ends on every device are posted together; none reads what another brings."""
        self.batches += 1
        for chosen in [self.pair() for _ in range(self.rng.randint(2, 3))]:
            if chosen is not None:
                source, target, exchange, part = chosen
                send, receive, into = self.ends(part)
                self.add(source, send, "wire", exchange, self.batches)
                self.add(target, receive, "wire", exchange, self.batches)
                self.wrote(target, "inbox", into)

    def collective(self) -> None:
        """All members of one team along an axis, or a subset of them."""
        axis = self.rng.choice(self.axes)
        stride = self.lists // self.axes[0].size if axis.name == "a" else 1
        size = axis.size if axis.materialised else 1
        origin = self.rng.randrange(self.lists)
        origin -= origin // stride % size * stride if axis.materialised else 0
        members = tuple(sorted(self.rng.sample(range(size), self.rng.randint(1, size))))
        everybody = not axis.materialised or self.rng.random() < 0.5
        exchange = Exchange((axis.name,), None if everybody else members)
        part = self.rng.randrange(PARTS)
        effect = Effect(Kind.COLLECTIVE, "SUM", (self.pattern("kept", part),), (self.pattern("plain", part),))
        for member in range(size) if everybody else members:
            device = origin + member * stride if axis.materialised else origin
            self.add(device, effect, "reduce", exchange)
            self.wrote(device, "plain", part)


def random_general(rng: Random, max_steps: int = 25) -> Program:
    """A program of computes, copies, calls, exchanges in both directions, collectives, rings, ages and `after`."""
    walk = RandomWalk(rng)
    steps = [walk.local, walk.local, walk.transfer, walk.transfer, walk.collective, walk.batch]
    for _ in range(rng.randint(1, max_steps)):
        rng.choice(steps)()
    return walk.builder.build()


def random_program(rng: Random) -> Program:
    """A pipeline or a general program."""
    return random_pipeline(rng) if rng.random() < 0.4 else random_general(rng)


def random_costs(rng: Random, program: Program) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and latency of every row, different at the ends of an exchange, sometimes zero, often with ties."""
    n = program.num_rows
    style = rng.randrange(3)
    if style == 0:
        seconds = [rng.choice((0.0, 1.0, 2.0)) for _ in range(n)]
        latency = [rng.choice((0.0, 0.5)) for _ in range(n)]
    elif style == 1:
        seconds, latency = [rng.random() for _ in range(n)], [rng.random() for _ in range(n)]
    else:
        seconds, latency = [rng.expovariate(1.0) for _ in range(n)], [0.0] * n
    return np.array(seconds, dtype=np.float64), np.array(latency, dtype=np.float64)
