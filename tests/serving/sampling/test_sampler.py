"""Tokens come from exactly the distribution that their request describes, and are the same in every batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tests.serving.sampling.exact_distribution import exact_distribution

from meshwright.serving.request.sampling_parameters import GREEDY, SamplingParameters
from meshwright.serving.sampling.inverse_draw import NO_TOKEN
from meshwright.serving.sampling.output_end import is_last
from meshwright.serving.sampling.sampler import Sampler
from meshwright.specs.error import SpecError

V = 24
LOGITS = np.random.default_rng(5).normal(scale=1.5, size=V).astype(np.float32)
PROMPT, OUTPUT = (3, 3, 9, 20), (4, 4, 4, 7, 19)  # most of them probable
NUM_DRAWS = 4000  # of one parameter alone
NUM_DRAWS_TOGETHER = 800
LEAST_EXPECTED = 5.0  # draws of a token, for chi-square; rarer ones are counted together
LEAST_P_VALUE = 1e-4  # seeds are fixed, so this is passed always or never

PARAMETERS = {
    "temperature": 0.6,
    "top_k": 7,
    "top_p": 0.8,
    "min_p": 0.08,
    "presence_penalty": 1.3,
    "frequency_penalty": -0.7,
    "repetition_penalty": 1.6,
    "logit_bias": ((2, 2.5), (4, -1.0)),
}
CHOSEN = [(), *((name,) for name in PARAMETERS), *combinations(PARAMETERS, 2), tuple(PARAMETERS)]


def draws(parameters: SamplingParameters, number: int = NUM_DRAWS, mask=None) -> np.ndarray:
    """Tokens of so many requests with seeds of their own, in one call."""
    sampler = Sampler(V)
    rows = [sampler.add(replace(parameters, seed=seed), PROMPT, OUTPUT, mask=mask) for seed in range(number)]
    return sampler.draw(np.array(rows), np.tile(LOGITS, (number, 1))).token_ids


def p_value(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """Of the chi-square test; 0 where a token came that cannot."""
    found, expected = np.bincount(tokens, minlength=V), probabilities * len(tokens)
    if found[probabilities == 0.0].any():
        return 0.0
    is_rare = expected < LEAST_EXPECTED
    found = np.append(found[~is_rare], found[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    found, expected = found[expected > 0.0], expected[expected > 0.0]
    return float(chisquare(found, expected).pvalue) if len(found) > 1 else 1.0


@pytest.mark.parametrize("names", CHOSEN, ids=lambda names: "+".join(names) or "softmax")
def test_draws_follow_the_exact_distribution(names) -> None:
    parameters = SamplingParameters(**{name: PARAMETERS[name] for name in names})
    exact = np.array(exact_distribution(LOGITS, parameters, PROMPT, OUTPUT))
    number = NUM_DRAWS if len(names) < 2 else NUM_DRAWS_TOGETHER
    assert p_value(draws(parameters, number), exact) > LEAST_P_VALUE


NEAR = {
    "temperature": 0.7,
    "top_k": 8,
    "top_p": 0.87,
    "min_p": 0.05,
    "presence_penalty": 0.7,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.3,
    "logit_bias": ((2, 2.2), (4, -1.0)),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_parameter_that_is_a_little_off_is_noticed(name) -> None:
    near = SamplingParameters(**{name: NEAR[name]})
    exact = np.array(exact_distribution(LOGITS, near, PROMPT, OUTPUT))
    assert p_value(draws(SamplingParameters(**{name: PARAMETERS[name]})), exact) < LEAST_P_VALUE


def test_top_p_keeps_the_smallest_set_and_no_token_more() -> None:
    probabilities = np.array([0.1, 0.5, 0.25, 0.1, 0.05])
    logits = np.log(probabilities).astype(np.float32)
    for top_p, kept in (
        (0.49, {1}),
        (0.51, {1, 2}),
        (0.74, {1, 2}),
        (0.76, {1, 2, 0}),
        (0.96, {0, 1, 2, 3, 4}),
    ):
        sampler = Sampler(5)
        rows = np.array([sampler.add(SamplingParameters(top_p=top_p, seed=seed)) for seed in range(400)])
        assert set(sampler.draw(rows, np.tile(logits, (400, 1))).token_ids.tolist()) == kept, top_p


MIXED = (
    GREEDY,
    SamplingParameters(seed=1),
    SamplingParameters(seed=2, temperature=0.5, num_logprobs=3),
    SamplingParameters(seed=3, top_k=5),
    SamplingParameters(seed=4, top_p=0.7, presence_penalty=0.5),
    SamplingParameters(seed=5, min_p=0.02, num_logprobs=0),
    SamplingParameters(seed=6, repetition_penalty=1.2),
    SamplingParameters(temperature=0.0, frequency_penalty=1.5, num_logprobs=2),
    SamplingParameters(seed=7, logit_bias=((1, 3.0),)),
    SamplingParameters(seed=-8, temperature=1e-300),
)
WIDE = 700  # not a multiple of the block


@settings(max_examples=20)
@given(st.permutations(range(len(MIXED))), st.integers(0, 2**32 - 1))
def test_a_token_is_the_same_in_every_batch(order, logits_seed) -> None:
    """Bit by bit, logprobs too: together, in any order and alone, over several steps."""
    steps = np.random.default_rng(logits_seed).normal(size=(3, len(MIXED), WIDE)).astype(np.float32)
    together, alone = Sampler(WIDE), Sampler(WIDE)
    rows = np.array([together.add(MIXED[number], PROMPT) for number in order])
    own = np.array([alone.add(parameters, PROMPT) for parameters in MIXED])
    for logits in steps:
        drawn = together.draw(rows, logits[list(order)])
        for place, number in enumerate(order):
            single = alone.draw(own[number : number + 1], logits[number : number + 1])
            assert drawn.token_ids[place] == single.token_ids[0]
            assert drawn.logprobs[place].tobytes() == single.logprobs[0].tobytes()


def test_an_output_that_goes_on_elsewhere_draws_the_same_tokens() -> None:
    parameters = SamplingParameters(seed=11, presence_penalty=1.0, repetition_penalty=1.1, top_k=9)
    logits = np.random.default_rng(0).normal(size=(8, 1, V)).astype(np.float32)
    whole = Sampler(V)
    row = np.array([whole.add(parameters, PROMPT)])
    expected = [int(whole.draw(row, step).token_ids[0]) for step in logits]
    other = Sampler(V)
    row = np.array([other.add(parameters, PROMPT, output=expected[:5])])
    assert [int(other.draw(row, step).token_ids[0]) for step in logits[5:]] == expected[5:]


def test_outputs_of_a_request_differ_and_requests_without_seed_do() -> None:
    sampler = Sampler(WIDE)
    flat = np.zeros((3, WIDE), np.float32)
    seeded = np.array([sampler.add(SamplingParameters(seed=1), output_number=number) for number in range(3)])
    free = np.array([sampler.add(SamplingParameters()) for _ in range(3)])
    for rows in (seeded, free):
        tokens = np.stack([sampler.draw(rows, flat).token_ids for _ in range(6)], axis=1)
        assert len({tuple(one) for one in tokens.tolist()}) == 3


def test_a_row_is_given_again_with_nothing_of_the_one_before() -> None:
    sampler = Sampler(V)
    first = sampler.add(SamplingParameters(temperature=0.0, logit_bias=((4, 100.0),)))
    assert sampler.draw(np.array([first]), LOGITS[None]).token_ids[0] == 4
    sampler.remove(first)
    again = sampler.add(GREEDY)
    assert again == first
    assert sampler.draw(np.array([again]), LOGITS[None]).token_ids[0] == LOGITS.argmax()


@settings(max_examples=30)
@given(st.data())
def test_penalties_grow_with_what_is_said(data) -> None:
    """Greedy under penalties, against the exact distribution after every token."""
    parameters = SamplingParameters(
        temperature=0.0,
        presence_penalty=data.draw(st.sampled_from([0.0, 0.9, -0.4])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.6, -0.3])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.4, 0.8])),
    )
    sampler, output = Sampler(V), []
    row = np.array([sampler.add(parameters, PROMPT)])
    for _ in range(12):
        expected = int(np.argmax(exact_distribution(LOGITS, parameters, PROMPT, output)))
        assert sampler.draw(row, LOGITS[None]).token_ids[0] == expected
        output.append(expected)


def test_logprobs_are_the_models_own() -> None:
    """Of the logits as they came: no temperature, penalty, bias or filter is in them."""
    parameters = SamplingParameters(
        seed=0, temperature=0.3, top_k=3, logit_bias=((5, 50.0),), presence_penalty=2.0, num_logprobs=4
    )
    sampler = Sampler(V)
    logits = np.stack([LOGITS, LOGITS])
    rows = np.array([sampler.add(parameters), sampler.add(GREEDY)])
    before = logits.copy()
    drawn = sampler.draw(rows, logits)
    exact = np.log(exact_distribution(LOGITS, SamplingParameters()))
    assert drawn.token_ids[0] == 5 and np.isnan(drawn.logprobs[1]) and drawn.top[1] is None
    np.testing.assert_allclose(drawn.logprobs[0], exact[5], rtol=1e-5)
    best = np.argsort(-exact)[:4]
    assert drawn.top[0] is not None and drawn.top[0].token_ids.tolist() == best.tolist()
    np.testing.assert_allclose(drawn.top[0].logprobs, exact[best], rtol=1e-5)
    np.testing.assert_array_equal(logits, before)


class Only:
    """A mask that allows some tokens, and notes what came."""

    def __init__(self, *tokens: int) -> None:
        self.tokens, self.accepted = tokens, []

    def allowed(self) -> np.ndarray:
        return np.isin(np.arange(V), self.tokens)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


def test_a_mask_leaves_its_tokens_in_their_proportion() -> None:
    mask = Only(1, 9, 15)
    tokens = draws(SamplingParameters(grammar="any"), NUM_DRAWS_TOGETHER, mask)
    exact = np.array(exact_distribution(LOGITS, SamplingParameters()))
    exact[[token for token in range(V) if token not in mask.tokens]] = 0.0
    assert p_value(tokens, exact / exact.sum()) > LEAST_P_VALUE
    assert mask.accepted == tokens.tolist()


@pytest.mark.parametrize(
    "parameters", [GREEDY, SamplingParameters(seed=0), SamplingParameters(seed=0, top_p=0.5)], ids=str
)
def test_where_nothing_can_be_drawn_only_that_row_says_so(parameters) -> None:
    sampler = Sampler(V)
    rows = np.array([sampler.add(replace(parameters, num_logprobs=1)) for _ in range(3)])
    logits = np.tile(LOGITS, (3, 1))
    logits[1, 4] = np.nan
    with np.errstate(all="raise"):
        found = sampler.draw(rows, logits)
    assert found.token_ids[1] == NO_TOKEN and (found.token_ids[[0, 2]] >= 0).all()
    assert np.isnan(found.logprobs[1]) and found.top[1] is None
    masked = sampler.add(replace(parameters, grammar="none"), mask=Only())
    assert sampler.draw(np.array([masked]), LOGITS[None]).token_ids[0] == NO_TOKEN


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"logit_bias": ((V, 1.0),)}, f"tokens 0 to {V - 1}"),
        ({"logit_bias": ((0, float("nan")),)}, "finite"),
        ({"num_logprobs": 21}, "0 to 20"),
        ({"grammar": "x", "ignore_eos": True}, "has an end"),
    ],
)
def test_what_the_model_cannot_be_asked_is_refused(wrong, said) -> None:
    with pytest.raises(SpecError, match=said):
        Sampler(V).add(SamplingParameters(**wrong))


def test_what_ends_an_output() -> None:
    asked = SamplingParameters(stop_token_ids=(5,))
    assert is_last(2, asked, (2, 3)) and is_last(5, asked, (2, 3)) and not is_last(4, asked, (2, 3))
    going_on = replace(asked, ignore_eos=True)
    assert not is_last(2, going_on, (2, 3)) and is_last(5, going_on, (2, 3))
