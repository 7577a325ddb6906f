"""Tokens of a batch drawn by our sampler, beside torch: what a step's sampling costs.

    python benchmarks/token_sampling.py [--rows 32] [--vocabulary 32000] [--rounds 11]

In every round each case is drawn by both, one after the other, on one thread, from the same logits: of noise with standard
deviation 3, so that top-p keeps thousands of tokens, more than a language model's logits let it. Torch draws as engines on it
do: penalties by scatter, top-k and top-p by a sort of all logits, a token of each row by exponential noise. First the tokens
that both may draw are compared. One JSON line a case: the ratio is torch's time over ours, median and quartiles over rounds,
each side the best of five calls; greedy must not get slower.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from meshwright import __version__
from meshwright.serving.request.sampling_parameters import GREEDY, SamplingParameters
from meshwright.serving.sampling.kept_tokens import is_filtered, kept_tokens
from meshwright.serving.sampling.sampler import Sampler

WIDTH = 3.0
NUM_TRIES = 5
NUM_PROMPT_TOKENS = 300
CASES = {
    "greedy": GREEDY,
    "temperature": SamplingParameters(temperature=0.7, seed=0),
    "top-k 50": SamplingParameters(top_k=50, seed=0),
    "top-p 0.95": SamplingParameters(top_p=0.95, seed=0),
    "min-p 0.05": SamplingParameters(min_p=0.05, seed=0),
    "0.7, top-k 40, top-p 0.95": SamplingParameters(temperature=0.7, top_k=40, top_p=0.95, seed=0),
    "greedy, repetition 1.1": SamplingParameters(temperature=0.0, repetition_penalty=1.1),
    "5 log-probabilities": SamplingParameters(temperature=0.0, num_logprobs=5),
}


def by_torch(
    logits: Tensor, parameters: SamplingParameters, said: Tensor, only_weights: bool = False
) -> Tensor:
    """Tokens ``[R]``, or probabilities ``[R, V]``. `said`: ``[R, n]``, tokens of prompts."""
    if parameters.num_logprobs is not None:
        torch.log_softmax(logits, -1).topk(parameters.num_logprobs, -1)
    if parameters.repetition_penalty != 1.0:
        values = logits.gather(-1, said)
        factor = parameters.repetition_penalty
        logits = logits.scatter(-1, said, torch.where(values > 0, values / factor, values * factor))
    if parameters.is_greedy:
        return logits.argmax(-1)
    logits = logits / parameters.temperature
    if parameters.min_p:
        floor = logits.amax(-1, keepdim=True) + np.log(parameters.min_p)
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if parameters.top_k or parameters.top_p < 1.0:
        ordered, places = logits.sort(-1)
        if parameters.top_k:
            ordered = ordered.masked_fill(ordered < ordered[:, -parameters.top_k, None], -torch.inf)
        if parameters.top_p < 1.0:
            below = ordered.softmax(-1).cumsum(-1) <= 1.0 - parameters.top_p
            below[:, -1] = False
            ordered = ordered.masked_fill(below, -torch.inf)
        logits = torch.empty_like(logits).scatter_(-1, places, ordered)
    weights = logits.softmax(-1)
    if only_weights:
        return weights
    return weights.div_(torch.empty_like(weights).exponential_()).argmax(-1)


def best_us(call: Callable[[], object]) -> float:
    """Microseconds of the fastest of a few calls."""
    times = []
    for _ in range(NUM_TRIES):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e6


def check(logits: Tensor, said: Tensor) -> None:
    """Both may draw the same tokens of the first row."""
    for name, parameters in CASES.items():
        if is_filtered(parameters):
            theirs = by_torch(logits[:1], parameters, said[:1], only_weights=True)[0].nonzero()[:, 0]
            ours = np.sort(kept_tokens(logits[0].numpy(), parameters)[0])
            # Sums of float32 may put one token more or less at the border of top-p.
            assert len(np.setxor1d(ours, theirs.numpy())) <= 1, (
                f"{name}: {len(ours)} and {len(theirs)} tokens"
            )


def main() -> None:
    """One JSON line a case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("--rows", 32), ("--vocabulary", 32000), ("--rounds", 11)):
        parser.add_argument(name, type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    noise = np.random.default_rng(0)
    logits = noise.normal(scale=WIDTH, size=(options.rows, options.vocabulary)).astype(np.float32)
    prompts = noise.integers(0, options.vocabulary, (options.rows, NUM_PROMPT_TOKENS))
    tensor, said = torch.from_numpy(logits), torch.from_numpy(prompts)
    check(tensor, said)
    sampler = Sampler(options.vocabulary)
    rows = {
        name: np.array([sampler.add(each, prompt) for prompt in prompts.tolist()])
        for name, each in CASES.items()
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(options.rounds):
        for name, parameters in CASES.items():
            ours = best_us(lambda name=name: sampler.draw(rows[name], logits))
            theirs = best_us(lambda parameters=parameters: by_torch(tensor, parameters, said))
            seen[name].append((ours, theirs))
    for name, pairs in seen.items():
        low, middle, high = statistics.quantiles([theirs / ours for ours, theirs in pairs], n=4)
        line = {
            "schema": 1,
            "meshwright": __version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "case": name,
            "rows": options.rows,
            "vocabulary": options.vocabulary,
            "us": round(statistics.median(ours for ours, _ in pairs), 1),
            "ratio": round(middle, 2),
            "quartiles": [round(low, 2), round(high, 2)],
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
