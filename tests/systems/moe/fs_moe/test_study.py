"""The study of FSMoE: parts beside experts are one process, and their all-to-alls run beside computes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from meshwright.executor.job.pool import Pool
from meshwright.systems.moe.fs_moe import study


def test_parts_are_one_process(gloo_pool: Pool) -> None:
    assert study.parameter_difference(2, gloo_pool) < 1e-10


def test_all_to_alls_of_a_part_run_beside_computes_of_another(gloo_pool: Pool) -> None:
    shares = []
    for parts in (1, 2):
        trace = study.trained(study.MODEL, 2, parts, gloo_pool, 2).trace
        assert trace is not None
        shares.append(study.overlapped_share(trace))
    assert shares[1] > shares[0]


def test_a_slowed_link_trains_the_same(gloo_pool: Pool) -> None:
    """What is sent waits, and is what it was; the rate that is found sends an all-to-all in the seconds of the experts."""
    plain = study.trained(study.MODEL, 2, 1, gloo_pool, 3)
    rate = study.even_link(plain)
    assert plain.trace is not None
    layers, tokens, copies = study.MODEL.num_layers, 4 * 32, 2
    sent = plain.sent_bytes[0]["ROUTE"] / 3 / (4 * layers)  # four all-to-alls of a layer
    assert 0 < sent < tokens * copies * study.MODEL.hidden_size * 8
    most = max(each["ROUTE"] for each in plain.sent_bytes) / 3 / (4 * layers)
    assert most / rate == pytest.approx(study.measured_rows(plain.trace)[0])
    slowed = study.trained(study.MODEL, 2, 1, gloo_pool, 3, link_bytes_per_s=rate)
    assert slowed.losses == plain.losses
    assert slowed.sent_bytes == plain.sent_bytes


def test_the_closed_form_says_what_parts_gain() -> None:
    """Experts of 8 ms between two all-to-alls of 8: of two parts one all-to-all of each end stays, forward and backward."""
    whole, parted = (0.008, 0.008, 0.1), (0.004, 0.004, 0.1)
    forward_gain_s, backward_gain_s = 0.024 - 0.016, 0.032 - 0.024
    expected = 1 - 2 * (forward_gain_s + backward_gain_s) / 0.1
    assert study.predicted_ratio(whole, parted, 2, 2) == pytest.approx(expected)


def test_every_pair_has_a_slowed_link() -> None:
    links = study.slowed_links(3, 1e6).links
    assert {(link.one, link.other) for link in links} == {(0, 1), (0, 2), (1, 2)}
    assert all((link.bytes_per_s, link.burst_bytes) == (1e6, 0.0) for link in links)
