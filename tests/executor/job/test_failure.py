"""What goes wrong while a job runs ends it within seconds, with the rank, its instruction and its traceback.

A rank can raise, die, leave or hang, in a compute or in an exchange. Each ends its pool, and a new one takes two starts of
five seconds of processor time: every one of both is always tried, their other pairs are slow.
"""

from __future__ import annotations

import time

import pytest
from tests.executor.joining_handlers import joining
from tests.executor.relay_handlers import first_values, relay
from tests.training_case import Case, program_of, training_of

from meshwright.executor import run_program, run_training
from meshwright.executor.job.gather import Iteration
from meshwright.executor.job.pool import Pool
from meshwright.specs.error import ExecutionError

PROMPT_S = 10.0  # "within seconds", on a machine with other jobs


def fail(pool: Pool, how: str, rank: int = 1, timeout_s: float = 60.0) -> str:
    """The message of a job in which `rank` fails in iteration 1; it must not take long."""
    options = {"rank": rank, "iteration": 1, "how": how}
    pool.start()
    begin_s = time.monotonic()
    with pytest.raises(ExecutionError) as caught:
        run_program(
            relay(),
            initial_values=first_values(),
            iterations=5,
            options=options,
            pool=pool,
            timeout_s=timeout_s,
        )
    assert time.monotonic() - begin_s < PROMPT_S
    assert pool.process_ids == ()
    return str(caught.value)


@pytest.mark.slow
def test_a_handler_that_raises(own_pool: Pool) -> None:
    message = fail(own_pool, "raise")
    assert "rank 1 failed at 0ADD0, iteration 1: ValueError: this handler was told to fail" in message
    assert "relay_handlers.py" in message


@pytest.mark.slow
def test_a_killed_rank_is_the_cause_whatever_its_peers_say(own_pool: Pool) -> None:
    message = fail(own_pool, "kill", rank=0)
    assert "rank 0 died (was ended by signal 9) at iteration 1, 0MAKE0 (position 0)" in message


@pytest.mark.slow
def test_a_rank_that_leaves(own_pool: Pool) -> None:
    assert "rank 1 died (exited with status 7) at iteration 1, 0ADD0" in fail(own_pool, "exit")


def test_the_watchdog_names_the_instruction_of_every_rank(own_pool: Pool) -> None:
    message = fail(own_pool, "hang", rank=0, timeout_s=1.5)
    assert "no rank has moved for 1.5 s" in message
    assert "rank 0: iteration 1, 0MAKE0 (position 0)" in message
    assert "rank 1: iteration 1, 0ADD0 (position 1), which waits for 0RECV_NUMBER0" in message


def fail_joining(pool: Pool, timeout_s: float = 60.0, num_ranks: int = 2, **options: object) -> str:
    """The message where a row of one of several ranks that sum goes wrong in iteration 1."""
    pool.start()
    begin_s = time.monotonic()
    with pytest.raises(ExecutionError) as caught:
        run_program(
            joining(num_ranks),
            iterations=3,
            options={"iteration": 1, **options},
            pool=pool,
            timeout_s=timeout_s,
        )
    assert time.monotonic() - begin_s < PROMPT_S
    return str(caught.value)


@pytest.mark.slow
def test_an_exchange_that_fails_on_one_rank_of_several() -> None:
    with Pool(3) as pool:
        message = fail_joining(pool, num_ranks=3, rank=2, row="SUM", how="raise")
    assert "rank 2 failed at 0SUM0, iteration 1: ValueError: this handler was told to fail" in message


def test_a_rank_that_dies_in_an_exchange(own_pool: Pool) -> None:
    message = fail_joining(own_pool, rank=1, row="SUM", how="kill")
    assert (
        "rank 1 died (was ended by signal 9) at iteration 1, 0USE0 (position 3), which waits for 0SUM0"
        in message
    )


@pytest.mark.slow
def test_a_stream_that_fails_while_its_host_stands_in_an_exchange(own_pool: Pool) -> None:
    """The other rank never comes: nobody would raise what the stream has failed with."""
    message = fail_joining(own_pool, rank=0, row="FETCH", how="raise", absent=1)
    assert "rank 0 failed at 0FETCH0, iteration 1: ValueError: this handler was told to fail" in message


@pytest.mark.slow
def test_the_watchdog_names_a_peer_that_never_comes(own_pool: Pool) -> None:
    message = fail_joining(own_pool, timeout_s=1.5, rank=1, row="MAKE_OWN", how="hang")
    assert "rank 0: iteration 1, 0USE0 (position 3), which waits for 0SUM0" in message
    assert "rank 1: iteration 1, 0MAKE_OWN0 (position 0)" in message


def test_ctrl_c_stops_all_ranks_at_one_iteration(gloo_pool: Pool) -> None:
    case = Case("1f1b", 2, 4)

    def interrupt(iteration: Iteration) -> None:
        if iteration.number == 2:
            raise KeyboardInterrupt

    result = run_training(program_of(case), training_of(case), 100_000, pool=gloo_pool, progress=interrupt)
    assert result.interrupted and not result.was_killed
    assert 3 <= len(result.losses) < 100_000
    assert result.trace is not None and result.trace.num_iterations == len(result.losses) == len(
        result.gradients
    )
    assert set(result.parameters) and len(gloo_pool.process_ids) == gloo_pool.num_workers


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(own_pool: Pool) -> None:
    case = Case("1f1b", 2, 4)

    def interrupt(iteration: Iteration) -> None:
        if iteration.number in (2, 3):
            raise KeyboardInterrupt

    result = run_training(program_of(case), training_of(case), 100_000, pool=own_pool, progress=interrupt)
    assert result.interrupted and result.was_killed and len(result.losses) >= 4
    assert own_pool.process_ids == ()


def test_a_duration_ends_a_job_in_good_order(gloo_pool: Pool) -> None:
    case = Case("1f1b", 2, 4)
    begin_s = time.monotonic()
    result = run_training(program_of(case), training_of(case), 1_000_000, pool=gloo_pool, duration_s=1.0)
    assert time.monotonic() - begin_s < PROMPT_S
    assert not result.interrupted and 0 < len(result.losses) < 1_000_000
