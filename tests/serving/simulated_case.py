"""A small model on GPUs, and loads, for the tests of simulated serving."""

from __future__ import annotations

import random
from functools import cache

from meshwright.serving.request.request import Request
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_overhead import StepOverhead
from meshwright.serving.simulated.step_table import StepTable
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.model.model import ModelSpec

MOST_TOKENS, MOST_SEQUENCES, MOST_CONTEXT = 128, 32, 512
SMALL = ModelSpec.decoder(4, 4096, 32, num_kv_heads=8, vocabulary_size=32000, name="four layers")


@cache
def program(
    tp: int = 1, pp: int = 1, devices: str = "1x8xH100", model: str | ModelSpec = SMALL
) -> ForwardProgram:
    """The steps of a replica; known ones are kept from test to test."""
    alone = StepOverhead(host_s=0.0)
    return ForwardProgram(load_model(model), Cluster(devices), ReplicaLayout(tp, pp), overhead=alone)


def of_8b(tp: int = 1, pp: int = 1, devices: str = "1x8xH100") -> ForwardProgram:
    """Of a model whose numbers are well known."""
    return program(tp, pp, devices, "llama-3.1-8b")


@cache
def table(tp: int = 1, pp: int = 1, devices: str = "1x8xH100") -> StepTable:
    """Its table for small batches."""
    return StepTable(program(tp, pp, devices), MOST_TOKENS, MOST_SEQUENCES, MOST_CONTEXT)


def load(num: int = 150, per_s: float = 20.0, seed: int = 0, num_sessions: int = 0) -> list[Request]:
    """Requests of a few hundred tokens at random times; with sessions, prompts of one begin with 128 of the same tokens."""
    draw, now_s, found = random.Random(seed), 0.0, []
    for number in range(num):
        now_s += draw.expovariate(per_s)
        prompt, output = draw.randint(130, 400), draw.randint(1, 60)
        keys = ()
        if num_sessions:
            session = draw.randrange(num_sessions)
            keys = tuple((session if block < 8 else f"own {number}", block) for block in range(prompt // 16))
        found.append(Request(str(number), prompt, output, now_s, num_output_tokens=output, block_keys=keys))
    return found
