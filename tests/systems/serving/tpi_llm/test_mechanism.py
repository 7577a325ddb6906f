"""Blocks of the master counted by hand, and a token that waits for its disk, or for nothing but its memory and its sums."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.catalog import filler
from meshwright.specs.cluster.summing import sum_s
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.serving.tpi_llm.mechanism import (
    EdgeDevices,
    StreamedWeights,
    master_bytes,
    master_numbers,
    peak_bytes,
    token_s,
)

SMALL = ModelSpec.decoder(3, 512, 8, num_kv_heads=4, vocabulary_size=1000)
QUICK = EdgeDevices(4, 1e15, 1e9, 1e-3, 1e8)


def test_what_fills_the_slot_fetches_everything() -> None:
    made = filler("weights", "tpi_llm(window=3, disk_bytes_per_s=2e9)")
    assert made == StreamedWeights(3, 2e9)
    assert made.fetched(("embedding", "head")) == ("embedding", "head")
    assert (made.source.name, made.source.bytes_per_s) == ("disk", 2e9)
    with pytest.raises(PlanError, match="2 or more"):
        filler("weights", "tpi_llm(window=1)")


def test_the_master_has_its_part_of_layers_and_both_tables() -> None:
    """Llama-2-70B on eight: attention 75 MB, feed-forward part 352 MB, tables of 1.05 GB."""
    numbers = master_numbers(load_model("llama-2-70b"), 8)
    assert 4 * numbers["embedding"] == 4 * 32000 * 8192
    assert 4 * (numbers["layers.7.attention"] - 8192) == pytest.approx(75.5e6, rel=1e-3)
    assert 4 * (numbers["layers.7.feed_forward"] - 8192) == 4 * 3 * 8192 * 28672 / 8
    assert sum(master_numbers(SMALL, 1).values()) == SMALL.num_parameters


def test_the_peak_is_both_tables_and_the_files_copy_of_one() -> None:
    """Where one token ends and the next one begins; where a table has few rows it is the two parts of a layer."""
    table = 32000 * 8192
    assert peak_bytes(load_model("llama-2-70b"), 8, 2) == 4 * (2 * table + 8192) + 2 * (table + 8192)
    narrow = replace(SMALL, vocabulary_size=8)
    layer = master_numbers(narrow, 1)
    inner, attention = layer["layers.0.feed_forward"], layer["layers.0.attention"]
    assert peak_bytes(narrow, 1, 2) == 4 * (inner + attention) + 2 * inner


def test_a_token_waits_for_its_disk_or_not_at_all() -> None:
    read_s = (master_bytes(SMALL, 4) - 4 * 1000 * 512) / 1e9
    stars_s = 2 * 3 * sum_s("star", 4 * 512, 4, 1e-3, 1e8)
    assert token_s(SMALL, QUICK, 2) == pytest.approx(read_s + stars_s)
    slow = replace(QUICK, disk_bytes_per_s=1e6)
    assert token_s(SMALL, slow, 2) == pytest.approx(master_bytes(SMALL, 4) / 1e6, rel=1e-6)
