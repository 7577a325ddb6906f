"""Serving in the workbench: a state is what its command line says, a row of a search is the layout that it opens."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.cli.running import runner
from tests.workbench.reading import section, values
from tests.workbench.server.client import asked, client, refused
from tests.workbench.server.test_app import CONFIG, EVIL

from meshwright.reports.chart.quantity import quantity
from meshwright.workbench.server.load.asked_load import LOAD_DEFAULTS, asked_load_of
from meshwright.workbench.server.load.load_desk import FACTORS, MOST_JOBS, LoadDesk
from meshwright.workbench.server.session import Session

__all__ = ["client"]
SMALL = {
    "workload": "serve", "model": "gpt2", "cluster": "2xH100", "rate_per_s": "40", "prompt": "200", "output": "40", "tp": "1",
    "replicas": "2", "max_batch_tokens": "512", "max_sequences": "64", "ttft": "50ms", "tpot": "5ms",
}  # fmt: skip
SAID = ("TTFT p50", "TPOT p50", "tokens/s", "good requests/s")  # facts that a row of a search has, too


def facts(data: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in data["facts"]}


def seen(client: TestClient, words: dict[str, str], *parts: str) -> dict[str, Any]:
    return asked(client, "/api/view", {"state": {**SMALL, **words}, "parts": list(parts)})


def test_a_state_is_what_its_command_line_says(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    data = seen(client, {})
    (command,) = (note.partition(": ")[2] for note in data["notes"] if note.startswith("on the command line"))
    (layout,) = runner(capsys)(*shlex.split(command)[1:], "--json").data["layouts"]
    told = facts(data)
    assert told["TTFT p50"] == quantity(layout["ttft_s"]["p50"], "s")
    assert told["TPOT p50"] == quantity(layout["tpot_s"]["p50"], "s")
    assert told["good requests/s"] == f"{layout['goodput_per_s']:.2f}"
    assert layout["num_requests"] == 1000 and any("1,000 requests" in note for note in data["notes"])


def test_the_batch_and_the_blocks_over_time_stay_within_their_limits(client: TestClient) -> None:
    data = seen(client, {}, "occupancy")
    batch, blocks = data["sections"]
    run, wait = (values(line["y"]) for line in batch["lines"])
    held, there = (values(line["y"]) for line in blocks["lines"])
    assert [each["label"] for each in blocks["lines"]] == ["held", "all there are"]
    assert 0 < run.max() <= 2 * 64 and wait.min() >= 0
    assert 0 < held.max() <= there[0] and (there == there[0]).all()
    assert values(blocks["lines"][0]["x"])[-1] >= 999 / 40 * 0.8, "as long as requests come"
    assert data["kind"] == "workbench" and facts(data)["devices"] == "2"


def test_latency_against_load_goes_through_the_load_that_is_seen(client: TestClient) -> None:
    data = seen(client, {}, "against_load")
    ttft, tpot = data["sections"]
    for chart, name, limit_s in ((ttft, "TTFT p50", 0.05), (tpot, "TPOT p50", 0.005)):
        lines = {line["label"]: (values(line["x"]), values(line["y"])) for line in chart["lines"]}
        rates, p50 = lines["p50"]
        assert rates.tolist() == [40 * factor for factor in FACTORS] and chart["is_log"]
        assert quantity(float(p50[FACTORS.index(1.0)]), "s") == facts(data)[name]
        assert (lines["p50"][1] <= lines["p90"][1]).all() and (lines["p90"][1] <= lines["p99"][1]).all()
        assert lines["objective"][1].tolist() == [limit_s, limit_s]
    assert np.diff(values(tpot["lines"][0]["y"])).min() > -1e-4, "more load, longer steps"


@pytest.mark.slow
def test_what_a_search_finds_is_opened_as_its_row_says_it(client: TestClient) -> None:
    id = asked(client, "/api/plan", {"state": SMALL}, 202)["job"]
    ends = time.monotonic() + 120
    while (found := client.get(f"/api/plan/{id}").json())["state"] in ("waiting", "running"):
        assert time.monotonic() < ends
        time.sleep(0.05)
    plans, frontier = (section(found["document"], kind) for kind in ("plans", "frontier"))
    assert len(plans["rows"]) > 1 and any(point["is_best"] for point in frontier["points"])
    for row, words in zip(plans["rows"], plans["ids"], strict=True):
        opened = facts(seen(client, dict(parse_qsl(words))))
        assert [opened[name] for name in SAID[:3]] == [row[name] for name in SAID[:3]]
        assert opened["good requests/s"] == row["good/s"] and opened["devices"] == row["GPUs"]
    point = max(frontier["points"], key=lambda each: each["x"])
    opened = facts(seen(client, dict(parse_qsl(point["id"]))))
    assert opened["TPOT p50"] == quantity(point["y"], "s")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"workload": "play"}, "workload"),
        ({"workload": 7}, "workload"),
        ({"rate_per_s": "0"}, "rate_per_s is '0'"),
        ({"rate_per_s": "nan"}, "above 0 up to 10000"),
        ({"rate_per_s": "1e9"}, "rate_per_s"),
        ({"prompt": "-3"}, "prompt"),
        ({"prompt": "1000000"}, "prompts of at most"),
        ({"output": "100000"}, "outputs of at most"),
        ({"variation": "5"}, "from 0 up to 4"),
        ({"ttft": "soon"}, "ttft is 'soon'"),
        ({"tpot": "0ms"}, "tpot"),
        ({"tp": "0"}, "tp"),
        ({"tp": "5", "replicas": "1", "cluster": "8xH100"}, "5"),
        ({"tp": "4"}, "8 devices, 2xH100 has 2"),
        ({"replicas": "65", "cluster": "128xH100"}, "at most 64"),
        ({"ep": "2"}, "ep is 2"),
        ({"num_prefill": "2"}, "of which 2 prefill"),
        ({"max_batch_tokens": "16384"}, "at most 8,192"),
        ({"max_batch_tokens": "32"}, "64 sequences"),
        ({"precision": "int3"}, "precision"),
        ({"model": "llama-3.1-70b", "replicas": "1"}, "before the first block"),
    ],
)
def test_what_cannot_be_is_told_in_words(client: TestClient, words: dict[str, Any], said: str) -> None:
    error = refused(client, "/api/view", {"state": {**SMALL, **words}})
    assert said in f"{error['message']} {error['allowed']}"


def test_a_search_that_is_too_large_is_refused_before_it_is_begun(client: TestClient) -> None:
    id = asked(client, "/api/plan", {"state": {**SMALL, "cluster": "32x8xH100"}}, 202)["job"]
    while (found := client.get(f"/api/plan/{id}").json())["state"] in ("waiting", "running"):
        time.sleep(0.02)
    assert found["state"] == "failed" and "256 devices" in found["error"]["message"]


def test_a_pasted_model_is_text_and_has_no_command_line(client: TestClient) -> None:
    name = asked(client, "/api/model", {"text": json.dumps({**CONFIG, "_name_or_path": EVIL})})["name"]
    data = seen(client, {"model": name})
    assert data["title"].startswith(EVIL) and not any("on the command line" in note for note in data["notes"])


def test_a_load_that_is_only_seen_to_begin_says_so(client: TestClient) -> None:
    """A thousand requests in a tenth of a second; and fewer of longer ones."""
    data = seen(client, {"rate_per_s": "10000", "output": "400", "prompt": "20"})
    assert any("how the load begins" in note for note in data["notes"])
    assert not any("how the load begins" in note for note in seen(client, {})["notes"])
    assert asked_load_of({**SMALL, "output": "10000"}, Session()).drawn.num == 100


def test_what_steps_take_is_made_once_for_moves_of_the_load() -> None:
    desk, session = LoadDesk(), Session()
    first = desk._steps(asked_load_of(SMALL, session))
    for words in ({"rate_per_s": "1"}, {"replicas": "1"}, {"ttft": "1s"}, {"max_sequences": "32"}):
        assert desk._steps(asked_load_of({**SMALL, **words}, session)) is first
    for number in range(MOST_JOBS):
        desk._steps(asked_load_of({**SMALL, "cluster": f"{number + 2}x2xH100"}, session))
    assert len(desk._kept) == MOST_JOBS and desk._steps(asked_load_of(SMALL, session)) is not first


def test_an_address_that_says_serve_alone_is_a_whole_state(client: TestClient) -> None:
    catalog = client.get("/api/catalog").json()
    assert catalog["load_defaults"] == LOAD_DEFAULTS and "workload" not in catalog["defaults"]
    assert asked_load_of({"workload": "serve"}, Session()).words.items() >= LOAD_DEFAULTS.items()
