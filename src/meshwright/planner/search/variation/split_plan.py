"""Split plans: of what was searched those with the vocabulary's layers divided among all stages of the pipeline.

No candidate of the space has that where nobody fixes it: it would make the space four times as large for what only
pipelines gain from whose last stage waits for nobody. No step is shorter by more than the microbatches' heads take on the
last stage; candidates that may be the fastest so are priced with one barrier by the closed form, and the best of these are
simulated; of the fastest the other ways to split, too (Yeung et al. 2024, arXiv 2411.05288).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.cost_table import EMBEDDING, HEAD
from meshwright.planner.form.distinct import distinct
from meshwright.planner.search.contender import ALONG, Contenders
from meshwright.planner.search.fitting import Fitting
from meshwright.planner.search.objective import DIGITS
from meshwright.planner.space.space import Space
from meshwright.specs.plan.optimizer import update_rule
from meshwright.specs.plan.plan import VOCABULARIES, Plan, Vocabulary
from meshwright.specs.plan.token_part import shares_of

Floats = NDArray[np.float64]
FIRST: Vocabulary = "one_barrier"  # keeps least, and is priced
NUM_SPLIT = 3  # candidates that are simulated so,
MOST_PRICED = (
    16384  # of those that fit the form prices so many; bounds come before estimates, many far below the step
)


def split(contenders: Contenders, best_s: float, capacity_bytes: int) -> list[tuple[Plan, float]]:
    """Candidates with a split vocabulary whose steps may be shorter than `best_s`, the fastest first; each with its seconds
    by the closed form."""
    if not _can_split(contenders):
        return []
    found = _hopeful(contenders, best_s)
    if not len(found):
        return []
    number = found.names["vocabulary"].index(FIRST)
    found = replace(found, open_contexts={}, vocabulary=np.full_like(found.vocabulary, number))
    fitting = Fitting.of(found, capacity_bytes, contenders.sources)
    if not len(fitting.numbers):
        return []
    _, fits, priced = replace(fitting, numbers=fitting.numbers[:MOST_PRICED]).priced()
    chosen, seen = list[tuple[Plan, float]](), set[tuple[float, float]]()
    for row in np.argsort(priced.step_s, kind="stable").tolist():
        seconds = float(priced.step_s[row])
        key = (round(seconds / priced.step_s.min(), DIGITS), round(float(priced.needed_bytes[row])))
        if seconds >= best_s or len(chosen) == NUM_SPLIT:
            break
        if key not in seen:
            seen.add(key)
            chosen.append((fits.plan(row), seconds))
    return chosen


def _hopeful(contenders: Contenders, best_s: float) -> Space:
    """Candidates that may be faster than that, the most hopeful first; of those that were left out because their ends have
    too much to do or to hold, each with the first of its kinds of context parallelism."""
    space = contenders.space
    if not len(space):
        return contenders.uneven
    hoped_s = contenders.form.step_s - _heads_s(contenders)
    hoped_s = np.concatenate([np.where(space.pp > 1, hoped_s, np.inf), contenders.uneven_s])
    every = Space.joined([space, contenders.uneven]) if len(contenders.uneven) else space
    rows = np.flatnonzero(hoped_s < best_s)
    return every.taken(rows[np.argsort(hoped_s[rows], kind="stable")])


def other_splits(plan: Plan) -> Iterator[Plan]:
    """The plan with its vocabulary split in the other ways that it can be; interlaced has an order of its own with 1F1B."""
    for each in VOCABULARIES:
        is_known = each != "interlaced" or plan.schedule == "1f1b"
        if each not in (Plan.vocabulary, plan.vocabulary) and is_known:
            yield plan.changed(vocabulary=each)


def _can_split(contenders: Contenders) -> bool:
    """Has any candidate's model, optimizer and format what a split needs? As `Plan` and `lower` refuse the others."""
    model, formats = contenders.space.model, contenders.space.formats
    return (
        not model.num_encoder_layers
        and "tp" not in formats.get("overlap", ())
        and len(shares_of(formats.get("token_parts", 1))) == 1
        and update_rule(str(formats.get("optimizer", Plan.optimizer))).is_elementwise
    )


def _heads_s(contenders: Contenders) -> Floats:
    """Of every candidate, what embedding and head compute in all microbatches of a step: more a split cannot save."""
    space, passes = contenders.space, contenders.sources.passes
    way, first = distinct([*(getattr(space, name) for name in ALONG), space.expert_tp, space.sharding])
    found = []
    for row in first.tolist():
        plan = space.one_stage(row, recompute="none")
        both = passes.least_s(plan, "F") + passes.least_s(plan, "B")
        found.append(both[EMBEDDING] + both[HEAD])
    return np.asarray(space.num_microbatches * np.array(found)[way])
