"""Links between cities: single rows of the published table, both ways, and the seconds of a message."""

from __future__ import annotations

import pytest

from meshwright.specs.error import UnknownNameError
from meshwright.systems.pipeline.skip_pipe import city_link


def test_every_pair_of_cities_has_a_link() -> None:
    assert len(city_link.CITIES) == 12
    for one in city_link.CITIES:
        for other in city_link.CITIES:
            latency_ms, rate = city_link.link(one, other)
            assert latency_ms > 0 and rate > 0
            assert city_link.link(other, one) == (latency_ms, rate)


def test_rows_are_those_of_the_source() -> None:
    assert city_link.link("Belgium", "Canada") == (41, 0.0198974609375 * 8192)
    assert city_link.link("Canada", "Singapore") == (107, 0.01193847 * 8192)
    assert city_link.link("London", "Taiwan") == (109.5, 0.0089599609375 * 8192)
    assert city_link.link("Iowa", "Iowa") == (1, 2.0 * 8192)


def test_a_message_takes_latency_and_bytes_over_rate() -> None:
    assert city_link.message_s("Belgium", "Canada", 0) == pytest.approx(0.041)
    assert city_link.message_s("Oregon", "LA", 971 / 8 * 2**20) == pytest.approx(1.0124)


def test_an_unknown_city_is_named() -> None:
    with pytest.raises(UnknownNameError, match="Atlantis"):
        city_link.link("Iowa", "Atlantis")
