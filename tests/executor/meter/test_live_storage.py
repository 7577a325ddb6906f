"""Live storages on cases whose bytes can be counted by hand."""

from __future__ import annotations

import contextlib
import gc
import threading

import torch
from torch import nn

from meshwright.executor.meter.live_storage import LiveStorage, born_on_host

KIB = 1024


def _block(num_kib: int) -> torch.Tensor:
    return torch.empty(num_kib * KIB, dtype=torch.uint8)


def test_birth_death_and_peak() -> None:
    with LiveStorage() as live:
        first = _block(3)
        second = _block(5)
        assert live.current_bytes == 8 * KIB
        del first
        assert live.current_bytes == 5 * KIB
        third = _block(1)
        assert (live.current_bytes, live.peak_bytes) == (6 * KIB, 8 * KIB)
        del second, third
        assert live.current_bytes == 0


def test_views_share_a_storage_and_keep_it_alive() -> None:
    with LiveStorage() as live:
        whole = _block(4)
        part = whole.view(4, KIB)[1]
        alias = part.detach()
        assert live.current_bytes == 4 * KIB
        del whole, part
        assert live.current_bytes == 4 * KIB
        del alias
        assert live.current_bytes == 0


def test_backward_is_seen_and_saved_tensors_count() -> None:
    weight = nn.Parameter(torch.ones(256))  # 1 KiB
    x = torch.ones(256)
    with LiveStorage() as live:
        live.include([weight, x])
        assert live.current_bytes == 2 * KIB
        y = (weight * x).exp()  # product dies, result is saved for the backward
        assert (live.current_bytes, live.peak_bytes) == (3 * KIB, 4 * KIB)
        y.backward(torch.ones(256))
        del y
        gc.collect()
        assert live.current_bytes == 3 * KIB  # the two, and weight.grad
    assert weight.grad is not None


def test_the_curve_is_a_step_curve_that_ends_at_the_current_bytes() -> None:
    with LiveStorage(keeps_curve=True) as live:
        for _ in range(3):
            _block(2)
    assert [point.bytes for point in live.curve] == [2 * KIB, 0] * 3
    times = [point.time_s for point in live.curve]
    assert times == sorted(times)


def test_what_outlives_the_context_is_no_longer_counted() -> None:
    with LiveStorage() as live:
        kept = _block(2)
    del kept
    assert live.current_bytes == 2 * KIB


def test_what_is_of_the_host_counts_there_wherever_it_is() -> None:
    moment, kept = _block(4), _block(4)
    with LiveStorage() as live:
        live.include([moment])
        live.include([kept], is_on_host=True)
        with born_on_host():
            other = _block(2)
            kept.copy_(moment)  # what lives already stays where it is
        again = other.clone()
        assert (live.device.current_bytes, live.host.current_bytes) == (6 * KIB, 6 * KIB)
        del other, again
    assert (live.current_bytes, live.host.current_bytes) == (4 * KIB, 4 * KIB)
    assert (live.peak_bytes, live.host.peak_bytes) == (6 * KIB, 6 * KIB)


def test_operations_of_another_thread_are_counted_where_it_says_so() -> None:
    kept: list[torch.Tensor] = []

    def work(is_watched: bool) -> None:
        with live.in_thread() if is_watched else contextlib.nullcontext():
            kept.append(_block(3))

    with LiveStorage() as live:
        for is_watched in (False, True):
            thread = threading.Thread(target=work, args=(is_watched,))
            thread.start()
            thread.join()
        assert live.current_bytes == 3 * KIB
        kept.clear()
        assert live.current_bytes == 0


def test_what_was_there_before_counts_with_what_a_function_makes() -> None:
    included = _block(10)
    with LiveStorage() as live:
        live.include([included])
        result = (_block(7), _block(1))[1]
        assert (live.current_bytes, live.peak_bytes) == (11 * KIB, 18 * KIB)
        del result
