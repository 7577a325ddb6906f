"""Blocks of the master counted by hand, and a token that waits for its disk, or for nothing but its memory and its sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meshwright.catalog import filler
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.costs.roofline import Roofline
from meshwright.ir import span_s
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Pattern, ValueBytes, ValueKind, Work
from meshwright.lowering.place import Placement
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.source import Cluster
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


UP, DOWN, CHUNK = (ValueKind(name, "none", microbatch=False) for name in ("up", "down", "chunk"))


def _of(kind: ValueKind, part: str = "zero", offset: int = 0) -> Pattern:
    return Pattern(kind.name, "none", part=part, part_offset=offset)


def star(num: int, num_bytes: float) -> Program:
    """Messages of a sum: everybody's term to device 0, and the sum back."""
    builder = ProgramBuilder(
        [Axis("tp", num)], value_kinds=(UP, DOWN), paths=((),),
        value_bytes=(ValueBytes("up", (num_bytes,)), ValueBytes("down", (num_bytes,))),
    )  # fmt: skip
    for device in range(num):
        builder.add(
            device, Effect(Kind.COMPUTE, "MAKE", (), (_of(UP, "row"),)), part=device, work=Work("MAKE")
        )
    for worker in range(1, num):
        up, down = Exchange(("tp",), (worker, 0)), Exchange(("tp",), (0, worker))
        builder.add(
            worker, Effect(Kind.SEND, "UP", (_of(UP, "row"),)), part=worker, exchange=up, stream="send/0"
        )
        builder.add(
            0, Effect(Kind.RECEIVE, "FROM_BELOW", (), (_of(UP, "row"),)), part=worker, exchange=up, stream=f"receive/{worker}"
        )  # fmt: skip
        builder.add(
            worker, Effect(Kind.RECEIVE, "FROM_ABOVE", (), (_of(DOWN),)), exchange=down, stream="receive/0"
        )
    builder.add(
        0, Effect(Kind.COMPUTE, "SUM", (_of(UP, "until"),), (_of(DOWN),)), part=num - 1, work=Work("SUM")
    )
    for worker in range(1, num):
        down = Exchange(("tp",), (0, worker))
        builder.add(0, Effect(Kind.SEND, "DOWN", (_of(DOWN),)), exchange=down, stream=f"send/{worker}")
    return builder.build()


def ring(num: int, num_bytes: float) -> Program:
    """Messages of a sum: an n-th of the term around, and once more."""
    builder = ProgramBuilder(
        [Axis("tp", num)],
        value_kinds=(CHUNK,),
        value_bytes=(ValueBytes("chunk", (num_bytes / num,)),),
        paths=((),),
    )
    there = _of(CHUNK, "row", 1)
    for device in range(num):
        builder.add(device, Effect(Kind.COMPUTE, "MAKE", (), (_of(CHUNK),)), work=Work("MAKE"))
        for step in range(2 * (num - 1)):
            around = Exchange(("tp",), None, 1)
            give = Effect(Kind.SEND, "GIVE", (_of(CHUNK, "row"),), moves=there)
            builder.add(device, give, part=step, exchange=around, stream="send/next")
            builder.add(
                device, Effect(Kind.RECEIVE, "TAKE", (), (there,)), part=step, exchange=around, stream="receive/last"
            )  # fmt: skip
    return builder.build()


@pytest.mark.parametrize("latency_s", [1e-4, 1e-3, 5e-3])
@pytest.mark.parametrize(("way", "messages_of"), [("star", star), ("ring", ring)])
def test_the_formulas_are_what_single_messages_take(
    way: str, messages_of: Callable[[int, float], Program], latency_s: float
) -> None:
    """Simulated one by one on links that they share: all of a star's go through one device's link. 32 KiB, eight devices."""
    wired = Cluster("8x1xcpu nic=1Gb/s")
    slow = replace(wired, levels=tuple(replace(each, latency_s=latency_s) for each in wired.levels))
    program, messages = messages_of(8, 32768.0), Roofline(slow, link_efficiency=1.0)
    trace = simulate_program(
        program, FixedCosts(seconds={"MAKE": 0.0, "SUM": 0.0}), messages,
        placement=Placement(slow, np.arange(8), ("tp",)),
    )  # fmt: skip
    assert trace.engine == ("event" if way == "star" else "max-plus")
    assert span_s(trace) == pytest.approx(sum_s(way, 32768.0, 8, latency_s, 125e6), rel=1e-6)
