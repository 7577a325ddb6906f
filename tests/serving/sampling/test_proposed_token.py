"""What comes in a proposal's place is distributed by the model alone: exactly, over drawn triples of distributions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meshwright.serving.sampling.inverse_draw import drawn_of_few
from meshwright.serving.sampling.kept_tokens import Kept
from meshwright.serving.sampling.proposed_token import ProposedToken, taken_or_replaced

Rule = Callable[[Kept, ProposedToken, float, float], int]
VOCABULARY, EXACT = 6, 1e-9
BISECTIONS = 40


def threshold(is_below: Callable[[float], bool]) -> float:
    """Where within [0, 1] a step from true to false is."""
    low, high = 0.0, 1.0
    if is_below(np.nextafter(1.0, 0.0)):
        return 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


def distribution(rule: Rule, target: Kept, draft: Kept) -> np.ndarray:
    """Of what a rule gives, over the proposal and both uniform numbers: thresholds are found, nothing is sampled."""
    found = np.zeros(VOCABULARY)
    rest = np.nextafter(1.0, 0.0)
    for token, share in zip(draft[0].tolist(), (draft[1] / draft[1].sum()).tolist(), strict=True):
        proposed = ProposedToken(token, draft)
        taken = threshold(lambda u, of=proposed: rule(target, of, u, 0.5) == of.token_id)
        found[token] += share * taken
        if taken == 1.0:
            continue
        places = {each: place for place, each in enumerate(target[0].tolist())}
        before = 0.0
        for each, place in places.items():
            upto = threshold(lambda u, of=proposed, at=place, by=places: by[rule(target, of, rest, u)] <= at)
            found[each] += share * (1.0 - taken) * (upto - before)
            before = upto
    return found


def drawn(random: np.random.Generator, concentration: float) -> Kept:
    """A distribution over some of the tokens, weights of any sum."""
    ids = np.flatnonzero(random.random(VOCABULARY) < 0.8)
    ids = random.permutation(ids if len(ids) else np.arange(VOCABULARY))
    return ids, random.dirichlet([concentration] * len(ids)) * random.uniform(0.5, 9.0)


def as_published(target: Kept, proposed: ProposedToken, accepting: float, drawing: float) -> int:
    """As a public implementation has it: drawn from p itself on rejection."""
    weights = dict(zip(target[0].tolist(), target[1] / target[1].sum(), strict=True))
    q = dict(
        zip(
            proposed.drawn_from[0].tolist(),
            proposed.drawn_from[1] / proposed.drawn_from[1].sum(),
            strict=True,
        )
    )
    if accepting * q[proposed.token_id] < weights.get(proposed.token_id, 0.0):
        return proposed.token_id
    return drawn_of_few(*target, drawing)


@pytest.mark.parametrize("concentration", [0.2, 1.0, 5.0])
def test_it_is_the_models_distribution_whatever_the_drafts_is(concentration: float) -> None:
    random, furthest = np.random.default_rng(int(10 * concentration)), 0.0
    for _ in range(12):
        target, draft = drawn(random, concentration), drawn(random, concentration)
        exact = np.zeros(VOCABULARY)
        exact[target[0]] = target[1] / target[1].sum()
        np.testing.assert_allclose(distribution(taken_or_replaced, target, draft), exact, rtol=0, atol=EXACT)
        furthest = max(furthest, np.abs(distribution(as_published, target, draft) - exact).sum() / 2)
    assert furthest > 0.02  # the mistake is seen


def test_equal_distributions_take_every_proposal() -> None:
    target = (np.array([3, 1, 0]), np.array([0.1, 0.7, 0.2]))
    for token in (0, 1, 3):
        assert taken_or_replaced(target, ProposedToken(token, target), np.nextafter(1.0, 0.0), 0.3) == token
