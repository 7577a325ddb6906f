"""Layouts: the degrees of parallelism that a cluster allows, and how they may lie on its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod
from typing import Any, NamedTuple

from meshwright.planner.space.axis import ENDS, LAYERS, MESH_ORDERS
from meshwright.prediction.memory_buffer import context_numbers
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.division import divides, shared_by_expert
from meshwright.specs.model.layers import split_layers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.context_parallel import (
    CONTEXTS,
    TOKEN_LAYOUTS,
    Context,
    ContextParallel,
    TokenLayout,
)
from meshwright.stage.mesh import folded

# Context parallelism pays where keys and values travel behind attention: a device keeps at least so many tokens.
LEAST_TOKENS_OF_CP = 1024
AS_ATTENTION, WHOLE = 0, 1  # of `Plan.etp`: experts are divided as attention is, or whole on a device
# Boundaries cross nodes in every chunk; beyond so many chunks a pipeline sends more than its bubble shrinks.
MAX_CHUNKS = 16


class Degrees(NamedTuple):
    """Degrees (`etp` as of a plan: 0 is as tp and ep have it), the number of their order in `MESH_ORDERS`; and how cp devices
    attend: numbers in `CONTEXTS` and in `TOKEN_LAYOUTS`, and how many of them exchange heads inside a ring."""

    tp: int
    cp: int
    ep: int
    etp: int
    pp: int
    dp: int
    mesh_order: int
    context: int
    token_layout: int
    ulysses: int

    @property
    def expert_tp(self) -> int:
        """Devices that share one expert's matrices, as `Plan.expert_tp`."""
        return self.etp or shared_by_expert(self.tp, self.dp * self.cp, self.ep)


def layouts(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    wanted: Mapping[str, Sequence[Any]],
    contexts: ContextKinds,
) -> Iterator[Degrees]:
    """All layouts of a model on all devices of a cluster; `wanted`: the values that are allowed of an axis.

    `contexts` says how devices of cp may attend. A tensor-parallel degree beyond a node, and an order that puts no device
    elsewhere, are only tried where wanted.
    """
    devices, node = cluster.num_devices, cluster.levels[0].num_devices
    orders = MESH_ORDERS if len(cluster.levels) > 1 else MESH_ORDERS[:1]
    orders = tuple(wanted.get("mesh_order", orders))
    degrees = wanted["tp"] if "tp" in wanted else divisors(min(node, devices))
    for tp in (degree for degree in degrees if _divides_attention(model, degree)):
        for cp in wanted.get("cp", _context_degrees(model, workload.sequence_length)):
            kinds = contexts.of(tp, cp)
            for pp in divisors(devices // (tp * cp)) if devices % (tp * cp) == 0 else ():
                dp = devices // (tp * cp * pp)
                if pp > model.num_layers + 2 or workload.global_batch % dp:
                    continue
                for ep, etp in _expert_degrees(model, (tp, cp, dp), wanted):
                    for order in _distinct_orders(orders, {"pp": pp, "dp": dp, "cp": cp, "tp": tp}):
                        yield from (Degrees(tp, cp, ep, etp, pp, dp, order, *kind) for kind in kinds)


def pipelines(num_layers: int, pp: int) -> list[tuple[int, int]]:
    """(chunks a device, number of the split in `LAYERS`) of a pipeline; no stage between the first and the last is empty,
    and no split comes twice.

    Chunks divide the layers of a device; where no split is even, every number of chunks is tried.
    """
    if pp == 1:
        return [(1, 0)]
    shares = [(num_layers + sum(ENDS[split])) / pp for split in LAYERS]
    is_any_even = any(share == int(share) for share in shares)
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    for number, split in enumerate(LAYERS):
        for chunks in range(1, min(MAX_CHUNKS, int(shares[number])) + 1):
            if shares[number] % chunks == 0 or not is_any_even:
                counts = split_of(num_layers, pp * chunks, split)
                if all(counts[1:-1]) and min(counts) >= 0:
                    seen.setdefault(counts, (chunks, number))
    return sorted(seen.values(), key=lambda each: (each[1], each[0]))


def split_of(num_layers: int, num_stages: int, split: str) -> tuple[int, ...]:
    """Layers of every stage; less than none where the model is too small for it."""
    first, last = ENDS[split]
    counts = list(split_layers(num_layers + first + last, num_stages))
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def _distinct_orders(orders: Sequence[str], degrees: Mapping[str, int]) -> list[int]:
    """Numbers in `MESH_ORDERS` of those that put at least one device elsewhere: axes of one device stand anywhere."""
    seen: dict[tuple[str, ...], int] = {}
    for order in orders:
        seen.setdefault(
            tuple(axis for axis in order.split("-") if degrees[axis] > 1), MESH_ORDERS.index(order)
        )
    return list(seen.values())


def divisors(number: int) -> list[int]:
    """Whole numbers that divide it, rising."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _divides_attention(model: ModelSpec, degree: int) -> bool:
    """Does a tensor-parallel degree divide what it has to, experts aside?"""
    return divides(model, degree, WHOLE) and model.vocabulary_size % degree == 0


ContextKind = tuple[int, int, int]  # numbers in `CONTEXTS` and `TOKEN_LAYOUTS`, and of `Plan.ulysses`


class ContextKinds:
    """How devices of cp that share sequences may attend, what keeps least first.

    Where nobody says a layout, it is the usual one of each kind, or stripes where no zigzag divides the sequence: they are
    as even, and need fewer runs.

    Args:
        allowed: kinds that may be taken.
        token_layouts, ulysses: those that may; none where nobody says. Then a ring is tried plain, and with as many
            neighbours of a node that exchange heads as key-value heads allow, where Ulysses alone would repeat these or
            leave the node: elsewhere it sends little more than those, and merges nothing.
        node: devices of a node; 0: nobody is a neighbour.
    """

    def __init__(
        self,
        model: ModelSpec,
        sequence_length: int,
        allowed: Sequence[Context],
        token_layouts: Sequence[TokenLayout] = (),
        ulysses: Sequence[int] = (),
        node: int = 0,
    ) -> None:
        self._model, self._length, self._allowed = model, sequence_length, tuple(allowed)
        self._token_layouts, self._ulysses, self._node = tuple(token_layouts), tuple(ulysses), node

    def of(self, tp: int, cp: int) -> tuple[ContextKind, ...]:
        """Those that divide what they must; nothing where none does. Alone a device attends in the first way allowed."""
        if cp == 1:
            first = (self._allowed[0], (self._token_layouts or ("",))[0])
            return (
                (_numbered(ContextParallel(1, *first)),)
                if 1 in (self._ulysses or (1,)) and self._allowed
                else ()
            )
        found = [each for kind in self._allowed for each in self._of_kind(kind, tp, cp)]
        found.sort(key=lambda each: context_numbers(self._model, tp, each))
        return tuple(map(_numbered, found))

    def _of_kind(self, kind: Context, tp: int, cp: int) -> Iterator[ContextParallel]:
        for ulysses in self._ulysses or (1, *self._neighbours(tp, cp)):
            found = []
            for layout in self._token_layouts or ("", "stripe"):
                try:
                    found.append(ContextParallel(cp, kind, layout, ulysses))
                except PlanError:  # not of this kind
                    continue
            found = [each for each in found if each.divides(self._model, tp, self._length)]
            yield from found if self._token_layouts else found[:1]

    def _neighbours(self, tp: int, cp: int) -> Iterator[int]:
        """How many exchange heads inside a ring: the most that pay, if any do."""
        heads = gcd(*(block.attention.num_kv_heads // tp for block in self._model.kinds))
        if heads % cp == 0 and tp * cp <= self._node:
            return
        inside = (each for each in divisors(cp)[1:-1] if heads % each == 0 and tp * each <= self._node)
        most = max(inside, default=1)
        if most > 1:
            yield most


def _numbered(own: ContextParallel) -> ContextKind:
    return CONTEXTS.index(own.kind), TOKEN_LAYOUTS.index(own.layout), own.ulysses


def way_of(cp: int, kind: ContextKind) -> ContextParallel:
    """What these numbers say."""
    context, layout, ulysses = kind
    return ContextParallel(cp, CONTEXTS[context], TOKEN_LAYOUTS[layout], ulysses)


def _context_degrees(model: ModelSpec, sequence_length: int) -> list[int]:
    """Powers of two that leave every device enough tokens."""
    if model.num_encoder_layers:
        return [1]  # every token sees all of the encoder's
    degrees = [1]
    while (
        sequence_length % (2 * degrees[-1]) == 0
        and sequence_length // (2 * degrees[-1]) >= LEAST_TOKENS_OF_CP
    ):
        degrees.append(2 * degrees[-1])
    return degrees


def _expert_degrees(
    model: ModelSpec, attention: tuple[int, int, int], wanted: Mapping[str, Sequence[int]]
) -> list[tuple[int, int]]:
    """(ep, etp) of a model's experts on devices of attention's degrees tp, cp and dp.

    Where nobody asks for others, experts are divided as attention is and lie along dp x cp, from the inside out; or they are
    whole on devices that fill those of tp. Where ep is asked for, or an etp, all that fold.
    """
    tp, cp, dp = attention
    if not model.num_experts:
        plain = 1 in wanted.get("ep", (1,)) and divides(model, tp)
        return [(1, etp) for etp in wanted.get("etp", (AS_ATTENTION,))[:1] if plain]
    degrees = list(wanted.get("ep", divisors(model.num_experts)))
    found: dict[tuple[int, int], int] = {}
    for etp in wanted.get("etp", (AS_ATTENTION, *((WHOLE,) if tp > 1 else ()))):
        for ep in (each for each in degrees if model.num_experts % each == 0):
            own = etp or shared_by_expert(tp, cp * dp, ep)
            if not (divides(model, tp, own) and _folds(attention, (own, ep))):
                continue
            is_asked = "ep" in wanted or (etp and "etp" in wanted)
            if is_asked or _is_usual(attention, etp, ep):
                found.setdefault((own, ep), etp)
    return [(ep, etp) for (_, ep), etp in found.items()]


def _is_usual(attention: tuple[int, int, int], etp: int, ep: int) -> bool:
    """Is it tried where nobody asks for such degrees?"""
    tp, cp, dp = attention
    if etp == AS_ATTENTION:
        return dp * cp % ep == 0 and (ep == 1 or ep % cp == 0)
    return ep > 1 and ep % tp == 0


def _folds(attention: tuple[int, int, int], experts: tuple[int, int]) -> bool:
    """Do the devices of a stage fold into so many for experts, too?"""
    if prod(attention) % prod(experts):
        return False
    try:
        folded(attention, experts)
    except PlanError:
        return False
    return True


def mesh_strides(mesh: Mapping[str, int]) -> dict[str, int]:
    """Steps between neighbours along every axis of a mesh; the axes are given outermost first."""
    found, step = {}, 1
    for axis, degree in reversed(list(mesh.items())):
        found[axis] = step
        step *= degree
    return found
