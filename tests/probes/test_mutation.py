"""Single faults in the probes: refused, or the outputs are the same. They have the parts, rings, ages and groups."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import ProgramError
from tests.golden.text import FOLDER
from tests.ir.mutation import FAULTS, mutant_of
from tests.probes.offloaded_step import offloaded_step
from tests.probes.ring_step import ring_step
from tests.probes.sharded_layer import sharded_layer
from tests.probes.stale_exchange import stale_exchange
from tests.probes.uneven_all_to_all import uneven_all_to_all

PROBES = {
    "ring": ring_step,
    "ring_batched": lambda: ring_step(streams="one", batched=True),
    "sharded": sharded_layer,
    "stale": stale_exchange,
    "uneven": uneven_all_to_all,
    "offloaded": offloaded_step,
    "offloaded_slot": lambda: offloaded_step(reads_slot=True),
    **{
        name: lambda name=name: from_text((FOLDER / f"probe_{name}.txt").read_text())
        for name in ("stage_visited_twice", "encoder_decoder", "tied_embedding")
    },
}


def judge(program: Program, seeds: range) -> tuple[Counter[str], Counter[str]]:
    made, refused = Counter[str](), Counter[str]()
    expected = outputs(program)
    for seed in seeds:
        rng = Random(seed)
        for name in FAULTS:
            try:
                mutant = mutant_of(rng, program, name)
            except LookupError:
                continue
            made[name] += 1
            try:
                verify(mutant, rng.choice(HOSTS))
            except ProgramError:
                refused[name] += 1
                continue
            assert outputs(mutant) == expected, f"seed {seed}: an accepted {name} has other outputs"
    return made, refused


def test_single_faults() -> None:
    made, refused = Counter[str](), Counter[str]()
    for program in PROBES.values():
        for total, more in zip((made, refused), judge(program(), range(12)), strict=True):
            total.update(more)
    for fault in ("drop", "duplicate", "retarget", "retag"):
        assert refused[fault] >= 0.9 * made[fault], f"{fault}: {refused[fault]} of {made[fault]} refused"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROBES))
def test_many_single_faults(name: str) -> None:
    judge(PROBES[name](), range(1000, 1300))
