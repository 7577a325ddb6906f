"""Gradients of which tensor-parallel devices have terms: of which groups, behind what they are summed, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.mutant import accepted, dropped, exchanged, mutations
from tests.lowering.plans import DENSE, EXPERTS, plan, rows_named
from tests.lowering.sharding.test_scatter import program_of
from tests.specs.configs import DEEPSEEK_V2

import meshwright.ir.judge.verify as verify_module
from meshwright.ir import from_text, to_text
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.specs import model_from_config
from meshwright.specs.error import ProgramError
from meshwright.stage.group.parameter_group import held_groups
from meshwright.stage.group.value_size import num_partial_parameters

LATENT = model_from_config({**DEEPSEEK_V2, "num_hidden_layers": 4})
FLOAT32 = 4
SEQUENCE_PARALLEL: dict[str, Any] = {"tp": 2, "sequence_parallel": True}


def sums(program: Program) -> list[Any]:
    return [view for device in range(program.num_lists) for view in rows_named(program, "SUM_GRAD", device)]


@pytest.mark.parametrize(
    ("choices", "num_groups"),
    [
        ({"tp": 2}, 0),
        ({"dp": 2, "sharding": "zero2"}, 0),
        (SEQUENCE_PARALLEL, 1),
        ({**SEQUENCE_PARALLEL, "pp": 2}, 2),
        ({"tp": 2, "model": EXPERTS}, 1),
        ({"tp": 2, "ep": 2, "dp": 2, "model": EXPERTS}, 4),
        ({"tp": 2, "model": LATENT}, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("in_segments", [False, True])
def test_groups_of_which_devices_have_terms_are_summed_once(
    choices: dict[str, Any], num_groups: int, in_segments: bool
) -> None:
    program = program_of(in_segments, **choices)
    found = sums(program)
    assert len(found) == num_groups
    assert all(view.exchange.axes == ("tp",) and view.stream == "reduce" for view in found)
    verify(program)
    assert to_text(from_text(to_text(program))) == to_text(program)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_a_sum_comes_behind_what_else_its_group_waits_for(sharding: str) -> None:
    program = program_of(**SEQUENCE_PARALLEL, dp=2, sharding=sharding)
    before = "SCATTER_GRAD" if sharding in ("zero2", "zero3") else "REDUCE_GRAD"
    for view in sums(program):
        own = [
            other.row
            for other in rows_named(program, before)
            if other.part == view.part and other.stage == view.stage
        ]
        assert own and max(own) == view.row - 1


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
def test_what_is_summed_are_the_terms_of_what_is_stepped(sharding: str) -> None:
    """All devices that share the state sum all terms together; the first may have them all in its shard."""
    chosen = plan(DENSE, **SEQUENCE_PARALLEL, dp=2, sharding=sharding)
    program = program_of(**SEQUENCE_PARALLEL, dp=2, sharding=sharding)
    sizes = {size.name: size for size in program.tables.sizes}
    shares = {"none": 1, "zero1": 2, "zero3": 2}[sharding]
    expected = sum(sizes[view.exchange.size].expected for view in sums(program))
    (layers,) = chosen.stages()
    assert expected == FLOAT32 * num_partial_parameters(chosen, layers) / shares
    assert all(each.expected <= each.max for each in sizes.values())
    # norms: two a block and the last
    assert num_partial_parameters(chosen, layers) == (2 * DENSE.num_layers + 1) * DENSE.hidden_size


def test_groups_say_along_which_axes_they_are_partial() -> None:
    chosen = plan(DENSE, **SEQUENCE_PARALLEL, dp=2)
    (held,) = held_groups(chosen, chosen.stages())
    assert held.group.partial == ("tp",) and held.group.replicated == ("dp",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row, _: dropped((row,)), "rows of SUM_GRAD"),
        (lambda row, exchange: exchanged((row,), exchange._replace(axes=("dp",))), "sum over exactly those"),
        (
            lambda row, exchange: exchanged((row,), exchange._replace(axes=("dp", "tp"))),
            "sum over exactly those",
        ),
        (
            lambda row, exchange: exchanged((row,), exchange._replace(algorithm="reduce_scatter")),
            "it is an all_reduce",
        ),
    ],
)
def test_a_fault_is_refused(change: Any, words: str) -> None:
    program = program_of(**SEQUENCE_PARALLEL, dp=2)
    view = sums(program)[0]
    with pytest.raises(ProgramError, match=words):
        verify(change(view.row, view.exchange)(program))


@pytest.mark.parametrize("check", ["check_duties", "check_sums"])
def test_layouts_alone_refuse_a_sum_that_is_left_out(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(**SEQUENCE_PARALLEL, dp=2, sharding="zero1")
    monkeypatch.setattr(verify_module, check, lambda *_: None)
    with pytest.raises(ProgramError):
        verify(dropped((sums(program)[0].row,))(program))


def test_without_layouts_and_duties_the_fault_is_seen_by_the_second_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = program_of(False, **SEQUENCE_PARALLEL)
    faults = [each for each in mutations(program) if "SUM_GRAD" in each[0]]
    assert faults
    for check in ("check_duties", "check_layouts", "check_sums", "check_operations"):
        monkeypatch.setattr(verify_module, check, lambda *_: None)
    _, found = accepted(program, iter(faults))
    assert found
