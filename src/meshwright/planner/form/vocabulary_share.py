"""A split vocabulary in the closed form: what every device of a pipeline takes and keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.pricing import Pricing
from meshwright.ir.table import Exchange, Work
from meshwright.lowering.vocabulary.effect import ALGORITHMS
from meshwright.lowering.vocabulary.split import DELAYS, INTERLACED, Algorithm
from meshwright.lowering.vocabulary.work import vocabulary_works
from meshwright.planner.space.site import Sites
from meshwright.planner.space.space import Space
from meshwright.prediction.memory_estimate import ADDED_MICROBATCHES, INTERLACED_FACTOR
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.plan.plan import VOCABULARIES, Plan
from meshwright.stage.exchange.inner import LOSS_ELEMENT_BYTES, LOSS_EXCHANGES
from meshwright.stage.group.value_size import num_table_parameters
from meshwright.stage.piece import is_vocabulary_split
from meshwright.stage.saved.saved import boundary_bytes_per_token
from meshwright.stage.work import microbatch_shape

Floats = NDArray[np.float64]
Ints = NDArray[Any]
SOFTMAX = "SUM_SOFTMAX"  # of the exchanges the one that is not of whole activations
# By number of `VOCABULARIES`: microbatches by which backwards are later, and what more are in flight so.
LATE = np.array([DELAYS.get(cast(Algorithm, each), 0) for each in VOCABULARIES])
ADDED = np.array([ADDED_MICROBATCHES.get(each, 0) for each in VOCABULARIES])
TIMES = np.array([INTERLACED_FACTOR if each == INTERLACED else 1.0 for each in VOCABULARIES])
FORWARD, BACKWARD = (
    ("LOOKUP", "S"),
    ("T", "SCATTER"),
)  # what is counted with a device's forwards, and backwards


def vocabulary_keys(space: Space) -> list[Ints]:
    """What decides what a split vocabulary takes and keeps, besides what decides the rest: nothing where it is not split."""
    is_split = space.vocabulary > 0
    return [space.vocabulary, np.where(is_split, space.pp, 0)]


def vocabulary_strides(space: Space) -> Ints:
    """Steps between devices that exchange along the pipeline what the vocabulary's passes need."""
    return np.where(space.vocabulary > 0, space.strides["pp"], 0)


def share_seconds(
    plan: Plan, pricing: Pricing, sites: Sites, price: Callable[[Work], float]
) -> tuple[float, float]:
    """Seconds of one microbatch's passes of the vocabulary on every device, (with forwards, with backwards); interlaced also
    of what they exchange, which nothing hides. `price`: of one work, with what it exchanges inside."""
    algorithm = cast(Algorithm, plan.vocabulary)
    works = vocabulary_works(plan, algorithm, 1)
    forward, backward = (sum(price(works[name, 0]) for name in names) for names in (FORWARD, BACKWARD))
    if algorithm != INTERLACED:
        return forward, backward
    shape = microbatch_shape(plan)
    whole = shape.num_tokens * float(boundary_bytes_per_token(plan.model, plan.dtype)) / plan.tp
    numbers = float(shape.num_tokens * LOSS_EXCHANGES * max(LOSS_ELEMENT_BYTES, dtype_bytes(plan.dtype)))
    ends = sites.members(plan, ("pp",))
    sent = sum(
        pricing.costs.exchange_cost(
            Exchange(("pp",), algorithm=kind), numbers if name == SOFTMAX else whole, ends
        ).seconds
        for name, kind in ALGORITHMS.items()
    )
    return forward + sent, backward


def share_parameters(plan: Plan) -> int:
    """Of both tables, or of one that is both, on every device among which they are split; 0 where they are not."""
    num_tables = 1 if plan.model.has_tied_embeddings else 2
    return num_tables * num_table_parameters(plan) if is_vocabulary_split(plan) else 0


def in_flight(counts: Floats, vocabulary: Ints, m: Ints) -> Floats:
    """Microbatches in flight, [candidates, stages], with those that wait for the barriers of a split vocabulary, as
    `memory_estimate` counts them. `vocabulary`: numbers of `VOCABULARIES`; `m`: microbatches."""
    if not vocabulary.any():
        return counts
    found = np.floor(counts * TIMES[vocabulary][:, None]) + ADDED[vocabulary][:, None]
    return np.where(vocabulary[:, None] > 0, np.minimum(found, m[:, None]), counts)
