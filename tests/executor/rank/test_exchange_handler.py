"""Every exchange beside what one process finds, what it leaves of its input, and the bytes it sends."""

from __future__ import annotations

import pytest
import torch
from tests.executor.exchanging_handlers import COLLECTIVES, MADE, RECEIVED, exchanging, kind_of, made
from tests.planned_case import Planned

from meshwright.executor import run_program
from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName

ITERATIONS = 2


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_exchanges_are_those_of_one_process_and_send_what_they_must(num_ranks: int, gloo_pool: Pool) -> None:
    keep = (MADE, RECEIVED, *map(kind_of, COLLECTIVES))
    result = run_program(
        exchanging(num_ranks), iterations=ITERATIONS, keep=keep, pool=gloo_pool, dtype="float64",
        shapes={MADE: tuple(made(0, num_ranks).shape), RECEIVED: tuple(made(0, num_ranks).shape)},
    )  # fmt: skip
    wholes = [made(rank, num_ranks) for rank in range(num_ranks)]
    total = torch.stack(wholes).sum(0)
    for rank, values in enumerate(result.values):
        expected = {
            # all read it before, and none but the last has changed it
            MADE: total,
            RECEIVED: wholes[rank - 1],
            "SUM": total,
            "GATHER": torch.cat(wholes),
            "GATHER_TOKENS": torch.cat(wholes, 1),
            "SCATTER_SUM": total.chunk(num_ranks)[rank],
            "SCATTER_TOKENS": total.chunk(num_ranks, 1)[rank],
            "SWAP": torch.cat([whole.chunk(num_ranks, 2)[rank] for whole in wholes], 1),
        }
        for name, value in expected.items():
            found = values[ValueName(kind_of(name) if name in COLLECTIVES else name)]
            assert torch.equal(found, value), f"{name} of rank {rank}"
    num_bytes, others = wholes[0].nbytes, (num_ranks - 1) / num_ranks
    once = {
        "SEND_ON": 1.0,
        "GATHER": num_ranks * others,  # of the whole, of which the tensor is a part
        "GATHER_TOKENS": num_ranks * others,
        "SCATTER_SUM": others,
        "SCATTER_TOKENS": others,
        "SUM": 2 * others,
        "SUM_IN_PLACE": 2 * others,
        "SWAP": others,
    }
    for sent in result.sent_bytes:
        assert sent == pytest.approx({name: ITERATIONS * num_bytes * share for name, share in once.items()})


@pytest.mark.parametrize(
    ("sharding", "passes"), [("none", {"REDUCE_GRAD": 2}), ("zero3", {"SCATTER_GRAD": 1, "UNSHARD": 1})]
)
def test_a_training_sends_the_closed_form_of_its_layout(
    sharding: str, passes: dict[str, int], gloo_pool: Pool
) -> None:
    """Of the parameters, each pass over a ring of n sends (n - 1) / n, as often as the program says."""
    case = Planned(choices={"dp": 2, "sharding": sharding, "microbatch_size": 4})
    job, _ = case.job(ITERATIONS)
    result = case.run(gloo_pool, ITERATIONS)
    assert result.trace is not None
    program, tables = job.program, job.program.tables
    names = [tables.effects[number].name for number in program.columns.effect.tolist()]
    num_bytes = sum(parameter.nbytes for parameter in result.parameters.values())
    assert len(result.sent_bytes) == 2
    for sent in result.sent_bytes:
        for name, num_passes in passes.items():
            times = names.count(name) / len(result.sent_bytes) / len(tables.groups)
            assert times >= 1 and sent[name] == pytest.approx(
                ITERATIONS * num_passes * times * num_bytes / 2, rel=0.01
            )
