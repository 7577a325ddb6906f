"""The stale exchange: golden text, and a period without its message."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.ir.judge.metrics import period_s
from meshwright.ir.judge.verify import verify
from meshwright.ir.text import from_text, to_text
from meshwright.ir.timing.dependencies import dependencies
from meshwright.specs.cluster.machine import HOSTS
from tests.golden.text import check_golden
from tests.probes.stale_exchange import stale_exchange
from tests.probes.timing import starts_of, trace_of

ENCODE, DENOISE, MESSAGE = 1.0, 2.0, 2.5
SECONDS = {"encode": ENCODE, "denoise": DENOISE, "GIVE_FEATURE": MESSAGE, "TAKE_FEATURE": MESSAGE}


def test_golden() -> None:
    check_golden("probe_stale_exchange", to_text(stale_exchange()))
    assert to_text(from_text(to_text(stale_exchange()))) == to_text(stale_exchange())


@pytest.mark.parametrize("host", HOSTS)
def test_ages_are_legal(host: str) -> None:
    for age in (0, 1, 2):
        verify(stale_exchange(age), host)


@pytest.mark.parametrize("host", HOSTS)
def test_the_period_is_shorter_than_that_of_the_synchronous_exchange(host: str) -> None:
    stale, synchronous = (trace_of(stale_exchange(age), SECONDS, 4, host) for age in (1, 0))
    assert period_s(stale) == pytest.approx(ENCODE + DENOISE)
    assert period_s(synchronous) == pytest.approx(ENCODE + MESSAGE + DENOISE)


@pytest.mark.parametrize("host", HOSTS)
def test_a_message_longer_than_an_iteration_sets_the_period(host: str) -> None:
    trace = trace_of(stale_exchange(), {**SECONDS, "GIVE_FEATURE": 5.0}, 12, host)
    assert period_s(trace) == pytest.approx(5.0)


def test_denoise_waits_for_the_message_of_the_iteration_before() -> None:
    program = stale_exchange()
    deps = dependencies(program)
    (row,) = (view.row for view in program.instructions(0) if view.name == "denoise")
    waits = {
        (program.row(int(deps.row[k])).name, int(deps.lag[k]))
        for k in range(deps.ptr[row], deps.ptr[row + 1])
    }
    assert waits == {("encode", 0), ("TAKE_FEATURE", 1)}
    trace = trace_of(program, SECONDS, 4)
    take = next(view.row for view in program.instructions(0) if view.name == "TAKE_FEATURE")
    for t in range(1, 4):
        assert starts_of(trace, "denoise", 0, t)[0] >= trace.end_s[t - 1, take]
    assert not np.any(starts_of(trace, "denoise", 0, 3)[0] >= trace.end_s[3, take])
