"""Claims that need no processes hold; the program of three functions is legal on any mesh."""

from __future__ import annotations

import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.ir.judge.verify import verify
from meshwright.ir.table import Kind
from meshwright.ir.text import from_text, to_text
from meshwright.specs.error import UnknownNameError
from meshwright.systems.planning.redco import card as redco
from meshwright.systems.planning.redco.mechanism import CALL_DATA, CALL_LOSS, CALL_PREDICT, three_functions


def test_claims_that_need_no_processes_hold() -> None:
    card = system("redco")
    assert "2310.16355" in card.paper and card.is_executed and not card.is_simulated
    own = [claim for claim in card.claims if ":" not in claim.by]
    failed = [c.claim for c in own if not c.judge(getattr(redco, c.by)(**c.arguments)).passed]
    assert not failed and sum(claim.is_evidence for claim in card.claims) == 7


@pytest.mark.parametrize(
    ("num_devices", "num_microbatches", "tp"), [(1, 1, 1), (2, 3, 1), (2, 2, 2), (1, 1, 4)]
)
def test_programs_are_legal(num_devices: int, num_microbatches: int, tp: int) -> None:
    program = three_functions(num_devices, num_microbatches, tp)
    for host in ("asynchronous", "in_order"):
        verify(program, host)
    verify(program.expand("dp").expand("tp"))
    assert from_text(to_text(program)).digest() == program.digest()
    calls = [row for row in program.instructions(0) if row.kind == Kind.CALL]
    names = [CALL_DATA, CALL_LOSS] * num_microbatches + [CALL_PREDICT]
    assert [row.name for row in calls] == names and {row.stream for row in calls} == {"host"}


def test_unknown_names_are_refused() -> None:
    for call in (
        lambda: redco.cut_dimension("bert", "x"),
        lambda: redco.cut_dimension("gpt2", "h.0.attn.q"),
        lambda: redco.block_exchanges("their"),
        lambda: redco.num_whole("bert"),
    ):
        with pytest.raises(UnknownNameError):
            call()
