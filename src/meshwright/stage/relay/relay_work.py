"""What a relay computes and holds: works of its steps, of what is added behind them, bytes of what is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from meshwright.ir.table import Work
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.operator import Operator, total_bytes, total_flops
from meshwright.specs.plan.plan import Plan
from meshwright.stage.exchange.relay_exchange import SUM_BYTES
from meshwright.stage.operator.attention import MERGE, OF_ATTENTION
from meshwright.stage.relay.rounds import AGAIN, Round, Rounds

FIRST = " first"  # behind a step's name: of the first one alone, where it is not as the others
# Of attention by whole rows of scores: operators by label, of its two relays, forward and backward.
OPERATORS_OF = {
    ("full_scores", False): ("scores", "softmax"),
    ("weighted_values", False): ("result",),
    ("weighted_values", True): ("scores", "key gradient"),
    ("full_scores", True): ("softmax", "result", "key gradient"),
}
# Where the dimensions of a product of scores, (heads, m, n, k), count keys: a step has those of one device.
KEYS_AT = {"scores": 2, "result": 3, "key gradient": 1}
ADDING_FLOPS = 4  # of a number of a state: a difference, a product, a sum, and its share of the exponentials


def part_of_core(step: str, name: str, core: Sequence[Operator]) -> tuple[Operator, ...]:
    """What one of the two relays of whole rows of scores runs in a pass, of all operators of attention's core."""
    labels = OPERATORS_OF.get((step, name in ("B", "I")))
    if labels is None:
        return tuple(core)
    found = {each.label: each for each in core}  # what there is two of, each relay has one of
    return tuple(found[label] for label in labels if label in found)


def relay_works(
    works: Mapping[str, Work],
    rounds: Rounds,
    num_steps: int,
    token_bytes: Mapping[str, float],
    num_tokens: float,
) -> dict[str, Work]:
    """Of a segment that is a relay, by its works as a whole: what each step does, what is done in front of and between them,
    and what stands behind them. ``token_bytes``: of values between steps, per token of so many.

    In the first step a device attends to its own piece, which is a causal product, in the others to those that come, of
    stripes causal ones, too, and merges. With a window shorter than a piece the first step is all. What comes back is
    merged by rows of its own.
    """
    found = {name: _of(work, name, ()) for name, work in works.items()}
    passes = {"F": rounds.forward, "R": rounds.forward.again, "I": rounds.backward}
    for name, own in passes.items():
        work = works[name]
        merged = (MERGE,) if own.owed and own.owed.adds else ()
        steps = [each for each in work.operators if each.label not in ("softmax", *merged)]
        beside = tuple(each for each in work.operators if each.label == "softmax")
        first, other = (
            _of(work, own.step, tuple(op for each in steps for op in _of_step(each, num_steps, is_first=is_first)))
            for is_first in (True, False)
        )  # fmt: skip
        if not work.flops:
            first = other = other._replace(share=work.share / num_steps)
        found[own.step] = other
        if first != other:
            found[own.step + FIRST] = first
        if name == "I":
            if own.prepares:
                found[own.prepares] = _of(
                    work, own.prepares, beside or _prepared(own, token_bytes, num_tokens)
                )
        else:
            found[name] = _of(work, name, beside)
        if own.owed and own.owed.adds:
            found[own.owed.adds] = _of(work, own.owed.adds, _added(own, token_bytes, num_tokens))
    return found


def _of(work: Work, name: str, operators: tuple[Operator, ...]) -> Work:
    """A part of a work by its operators."""
    flops = float(total_flops(operators))
    return work._replace(
        name=name, flops=flops, bytes=float(total_bytes(operators)), operators=operators,
        share=work.share * flops / work.flops if work.flops else 0.0,
    )  # fmt: skip


def _of_step(operator: Operator, num_steps: int, *, is_first: bool) -> tuple[Operator, ...]:
    """Products of a piece and merges are dealt out one by one, what the core of attention does else in equal parts."""
    if operator.kind != "attention" and operator.label not in OF_ATTENTION:
        dims, at = list(operator.shape), KEYS_AT.get(operator.label)
        if at is not None:
            dims[at] = -(-dims[at] // num_steps)
        flops, size = operator.flops / num_steps, operator.bytes / num_steps
        return (replace(operator, flops=flops, bytes=size, shape=tuple(dims)),)
    if operator.label == MERGE or (operator.kind == "attention" and not operator.shape[-1]):
        return () if is_first else (replace(operator, count=1),)
    if operator.kind == "attention" and operator.count == num_steps:
        return (replace(operator, count=1),)
    return (operator,) if is_first else ()


def _added(own: Round, token_bytes: Mapping[str, float], num_tokens: float) -> tuple[Operator, ...]:
    """Adding what came back: it is read, and the sum read and written."""
    assert own.owed is not None
    arrived, total = (kind.removesuffix(AGAIN) for kind in (own.owed.arrived, own.owed.total))
    size = (token_bytes[arrived] + 2 * token_bytes[total]) * num_tokens
    return (_elementwise(size, own.owed.adds.lower(), ADDING_FLOPS),)


def _prepared(own: Round, token_bytes: Mapping[str, float], num_tokens: float) -> tuple[Operator, ...]:
    """What travels is made of as much as it is, and of the outputs."""
    return (_elementwise(2 * token_bytes[own.prepared] * num_tokens, own.prepares.lower(), 2),)


def _elementwise(size: float, label: str, flops: int) -> Operator:
    num = int(size / SUM_BYTES)
    return Operator("elementwise", float(flops * num), size, (1, num), label=label)


class Widths(NamedTuple):
    """Numbers of a token on a device: queries, keys, values, results, heads."""

    query: int
    keys: int
    values: int
    attended: int
    heads: int


def relay_bytes(plan: Plan, widths: Widths) -> Iterator[tuple[str, float]]:
    """Bytes on one device of what relays send, add to and hand on, per token of the whole microbatch, by name."""
    size = dtype_bytes(plan.dtype) / plan.cp
    wide, block = max(size, SUM_BYTES / plan.cp), size * (widths.keys + widths.values)
    times = wide / size
    yield from ((name, block) for name in ("block", "travelling_block"))
    yield from ((name, times * block) for name in ("leaving_gradient", "arrived_gradient", "block_sum"))
    yield "query_sum", wide * widths.query
    yield "attention_state", wide * (widths.attended + widths.heads)
    # queries that travel, and what comes back of them: results as they are, logarithms of sums wide
    yield "travelling_query", size * widths.query
    yield from (
        (name, size * widths.attended + wide * widths.heads) for name in ("partial_state", "returned_state")
    )
    rows = size * (widths.query + widths.attended) + 2 * wide * widths.heads
    yield from ((name, rows) for name in ("own_rows", "travelling_rows"))
    yield from ((name, wide * widths.query) for name in ("leaving_query_gradient", "returned_query_gradient"))
    # whole rows of scores, and gradients of the keys and values of all devices
    pairs = widths.heads * plan.workload.sequence_length / plan.model.num_halves
    yield from ((name, wide * pairs) for name in ("scores", "probability_sum"))
    yield from ((name, size * pairs) for name in ("probabilities", "pair_gradient"))
    yield "weighted_sum", wide * widths.attended
    for name, width in (("key", widths.keys), ("value", widths.values)):
        yield from (
            (each, size * width) for each in (f"{name}s", f"travelling_{name}s", f"own_{name}_gradient")
        )
        yield f"{name}_terms", plan.cp * size * width
