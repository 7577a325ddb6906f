"""Several tokens a step: outputs are those of one token a step, and nothing is kept of what was not accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.covering import covering, product
from tests.serving.case import CONTINUOUS, LIMITS, check_books
from tests.serving.engine.test_runner_engine import BLOCK_TOKENS, Outputs, requests_of, said
from tests.serving.hash_runner import VOCABULARY, HashRunner, greedy_output

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.decoder.draft import DraftProposer
from meshwright.serving.decoder.ngram import NGramProposer
from meshwright.serving.engine.engine import StepResult
from meshwright.serving.engine.proposer import Proposer
from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.engine.runner_engine import MaskOf, no_mask
from meshwright.serving.engine.speculating_engine import SpeculatingEngine
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.serving.request.sampling_parameters import GREEDY, SamplingParameters

NUM_PROPOSED = 3


class Draft(HashRunner):
    """Says what the model says, but of some texts something else."""

    def __init__(self, num_blocks: int = 60) -> None:
        super().__init__(num_blocks, BLOCK_TOKENS)

    def forward(self, inputs: StepInputs) -> np.ndarray:
        """Rows are those of the model, or turned."""
        logits = super().forward(inputs)
        turned = logits.argmax(1) % 3 == 0
        logits[turned] = np.roll(logits[turned], 1, 1)
        return logits


class Watched(Outputs):
    """Counts what was proposed and accepted; books are right behind every step."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.scheduler, self.num_proposed, self.num_accepted = scheduler, 0, 0

    def ran(self, result: StepResult) -> None:
        """Tokens of a step."""
        super().ran(result)
        check_books(self.scheduler)
        got, ended = (
            Counter(each.sequence for each in result.tokens),
            {each.sequence for each in result.ended},
        )
        for sequence, num_proposed, num_accepted in result.speculated:
            assert 0 <= num_accepted == got[sequence] - 1 <= num_proposed <= NUM_PROPOSED
            self.num_proposed += num_proposed
            self.num_accepted += num_accepted
        for sequence in result.batch.decodes if result.batch.num_proposed else ():
            if sequence not in ended:  # what it holds is what its tokens need
                assert len(sequence.blocks) == -(-(self.scheduler.length(sequence) - 1) // BLOCK_TOKENS)


def told(
    requests: list[Request],
    proposer: Proposer,
    policy: ContinuousBatching = CONTINUOUS,
    num_blocks: int = 40,
    limits: Limits = LIMITS,
    mask_of: MaskOf = no_mask,
    end_ids: tuple[int, ...] = (),
) -> Watched:
    """What an engine with a decoder says; all is given back in the end."""
    host = 16 if policy.preemption == "swap" else 0
    clock, runner = VirtualClock(), HashRunner(num_blocks, BLOCK_TOKENS, host)
    host_pool = BlockPool(host, BLOCK_TOKENS) if host else None
    scheduler = Scheduler(policy, BlockPool(num_blocks, BLOCK_TOKENS), limits, host_pool, 1, NUM_PROPOSED)
    engine = SpeculatingEngine(runner, proposer, clock.now_s, end_ids, mask_of)
    outputs = Watched(scheduler)
    ServingLoop(scheduler, engine, RecordedArrivals(requests), clock, [outputs]).run()
    assert scheduler.pool.num_held == 0 and not engine._row_of
    engine.close()
    return outputs


ROWS = list(
    product(
        {
            "is_chunked": (True, False), "preemption": ("recompute", "swap"), "num_blocks": (11, 40),
            "num_outputs": (1, 3), "draft_blocks": (6, 60), "limits": (16, 64),
        }
    )
)  # fmt: skip


@pytest.mark.parametrize(
    "case", [ROWS[number] for number in covering(ROWS)], ids=lambda case: "-".join(map(str, case.values()))
)
def test_greedy_outputs_are_those_of_obvious_code(case: dict[str, int]) -> None:
    policy = ContinuousBatching(
        is_chunked=bool(case["is_chunked"]), preemption=str(case["preemption"]), watermark=0.0
    )
    limits, num_accepted = replace(LIMITS, max_batch_tokens=case["limits"]), 0
    for seed in range(4):
        requests = [
            each for each in requests_of(seed, 12, case["num_outputs"])
            if policy.is_chunked or each.num_prompt_tokens <= limits.max_batch_tokens
        ]  # fmt: skip
        proposer = DraftProposer(Draft(case["draft_blocks"]), VOCABULARY)
        outputs = told(requests, proposer, policy, case["num_blocks"], limits)
        assert proposer.num_held_blocks == 0
        for request in requests:
            expected = greedy_output(request.prompt or (), request.max_output_tokens)
            for output in range(request.num_outputs):
                assert outputs.tokens[request.id, output] == expected, (seed, request)
        num_accepted += outputs.num_accepted
    assert num_accepted > (10 if case["draft_blocks"] > 6 else -1)


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingParameters(temperature=0.05, seed=3),
        SamplingParameters(temperature=0.4, top_k=2, repetition_penalty=1.3, frequency_penalty=0.4, seed=4),
    ],
)
def test_tokens_are_the_same_with_ngrams_as_without(sampling: SamplingParameters) -> None:
    """What is proposed for certain comes where the sequence draws it: not even drawn tokens change."""
    requests = [
        Request(f"r{n}", 6, 30, prompt=[n, 8, n, 8, n, 8], sampling=replace(sampling, logit_bias=((n, 4.0), (8, 3.8))))
        for n in range(6)
    ]  # fmt: skip
    plain = said([replace(each) for each in requests], ContinuousBatching(), 60, 1)
    outputs = told(requests, NGramProposer(3, 1), num_blocks=60)
    assert outputs.tokens == plain.tokens and outputs.reasons == plain.reasons
    assert outputs.num_proposed > outputs.num_accepted > 10


def test_an_end_within_what_was_accepted_is_the_last_token() -> None:
    ends, requests = (3, 4, 5, 6, 7, 8), requests_of(3, 12, 1)
    outputs = told(requests, DraftProposer(Draft(), VOCABULARY), end_ids=ends)
    for request in requests:
        expected = greedy_output(request.prompt or (), request.max_output_tokens)
        places = [place for place, token in enumerate(expected) if token in ends]
        assert outputs.tokens[request.id, 0] == (expected[: places[0] + 1] if places else expected)


class Alternating:
    """A mask that allows even and odd tokens in turns; `asked` counts what it was asked about proposals."""

    def __init__(self, said: int = 0) -> None:
        self.said = said

    def allowed(self) -> np.ndarray:
        """Half of them."""
        return np.arange(VOCABULARY) % 2 == self.said % 2

    def accept(self, token_id: int) -> None:
        """It came."""
        self.said += 1

    def num_allowed(self, token_ids: list[int]) -> int:
        """As long as they alternate."""
        fits = [(self.said + place) % 2 == token % 2 for place, token in enumerate(token_ids)]
        return fits.index(False) if False in fits else len(fits)

    def fork(self) -> Alternating:
        """At the same place."""
        return Alternating(self.said)


def test_proposals_are_cut_where_a_grammar_ends_them() -> None:
    sampling = SamplingParameters(temperature=0.0, grammar="turns")
    requests = [Request("r", 5, 20, prompt=[1, 2, 4, 1, 2], sampling=sampling)]
    plain = said(
        [replace(each) for each in requests], ContinuousBatching(), 40, 1, (), lambda _: Alternating()
    )
    outputs = told(requests, NGramProposer(1, 1), mask_of=lambda _: Alternating())
    assert outputs.tokens == plain.tokens
    drafted = told(requests, DraftProposer(Draft(), VOCABULARY), mask_of=lambda _: Alternating())
    assert drafted.tokens == plain.tokens and drafted.num_accepted > 3


VOCABULARY_OF_TWO, LENGTH, NUM_DRAWN = 3, 3, 2400


class Texts(HashRunner):
    """A model of three tokens, whose logits are told for every text; the draft's are others."""

    vocabulary_size = VOCABULARY_OF_TWO

    def __init__(self, seed: int) -> None:
        super().__init__(4000, BLOCK_TOKENS)
        self.seed = seed

    def forward(self, inputs: StepInputs) -> np.ndarray:
        """Cut to the first tokens, and flat."""
        return super().forward(inputs)[:, self.seed : self.seed + VOCABULARY_OF_TWO].copy()


def test_drawn_outputs_have_the_models_distribution() -> None:
    """All texts of three tokens, counted; chi-square against products of the model's own probabilities."""
    from tests.serving.hash_runner import logits_of
    from tests.serving.sampling.exact_distribution import exact_distribution

    sampling = SamplingParameters(temperature=1.5, top_p=0.95, presence_penalty=0.5)
    requests = [
        Request(f"r{n}", 2, LENGTH, prompt=[1, 2], sampling=replace(sampling, seed=n))
        for n in range(NUM_DRAWN)
    ]
    clock = VirtualClock()
    limits = Limits(max_batch_tokens=4096, max_sequences=800, max_model_tokens=64)
    scheduler = Scheduler(ContinuousBatching(), BlockPool(4000, BLOCK_TOKENS), limits, None, 1, NUM_PROPOSED)
    proposer = DraftProposer(Texts(5), VOCABULARY_OF_TWO)
    engine, outputs = SpeculatingEngine(Texts(0), proposer, clock.now_s), Watched(scheduler)
    ServingLoop(scheduler, engine, RecordedArrivals(requests), clock, [outputs]).run()
    counts = Counter(tuple(tokens) for tokens in outputs.tokens.values())
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        expected = {
            (*text, token): share * more
            for text, share in expected.items()
            for token, more in enumerate(
                exact_distribution(logits_of(np.array([1, 2, *text]))[:VOCABULARY_OF_TWO], sampling, (1, 2), text)
            )
        }  # fmt: skip
    assert 0.3 < outputs.num_accepted / outputs.num_proposed < 0.95
    assert set(counts) <= {text for text, share in expected.items() if share}
    off = sum(
        (counts[text] - NUM_DRAWN * share) ** 2 / (NUM_DRAWN * share)
        for text, share in expected.items()
        if share
    )
    # 27 texts at most: 99.9 % of draws from 26 degrees of freedom are below 54.05.
    assert off < 54.05
