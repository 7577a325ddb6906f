"""The load generator against a real server of ours: everything sent is counted, failures are in the percentiles."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.serving.api.conftest import Served, serving

from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.load.event_client import ServerAddress
from meshwright.serving.load.load_generator import LoadPlan, send_load
from meshwright.serving.load.load_prompt import prompt_of
from meshwright.serving.load.load_record import LoadFigures, LoadRecord
from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.request import Request
from meshwright.specs.error import ExecutionError, SpecError

NO_OBJECTIVE = LatencyObjective()
BYTES = LoadPlan(vocabulary=256)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(step_s=0.002) as made:
        yield made


def requests_of(num: int, gap_s: float = 0.01) -> list[Request]:
    return [Request(f"r{n}", 5 + n, 8, n * gap_s, num_output_tokens=4 + n % 4) for n in range(num)]


def no_word(num: int, of: int) -> None:
    return None


@pytest.mark.parametrize("clients", [0, 3])
def test_every_request_is_sent_timed_and_counted(served: Served, clients: int) -> None:
    plan = LoadPlan(vocabulary=256, clients=clients)
    told: list[tuple[int, int]] = []
    records = send_load(ServerAddress.of_url(served.url), requests_of(12), plan, lambda *n: told.append(n))
    found = LoadFigures.of(records, NO_OBJECTIVE)
    assert (found.num_requests, found.num_finished, found.errors) == (12, 12, {})
    assert sum(each.num_tokens for each in records) == 3 * (4 + 5 + 6 + 7)
    assert sum(each.num_prompt_tokens for each in records) == sum(5 + n for n in range(12))
    assert told[-1] == (12, 12)
    for each in records:
        assert each.due_s <= each.sent_s < each.token_s[0] < each.end_s
        assert len(each.token_s) == each.num_tokens
    assert 0.0 < found.ttft_s["p50"] <= found.ttft_s["p99"] <= found.e2e_s["p99"]
    assert found.tpot_s["p50"] >= 0.002


def test_an_open_loop_sends_when_requests_are_due(served: Served) -> None:
    records = send_load(ServerAddress.of_url(served.url + "/v1/"), requests_of(10, 0.03), BYTES, no_word)
    assert [each.due_s for each in records] == pytest.approx([0.03 * n for n in range(10)])
    assert all(each.sent_s >= each.due_s for each in records)


def test_a_closed_loop_has_no_more_under_way_than_clients(served: Served) -> None:
    records = send_load(
        ServerAddress.of_url(served.url), requests_of(12, 0.0), LoadPlan(clients=2, vocabulary=256), no_word
    )
    for one in records:
        assert sum(other.sent_s <= one.sent_s < other.end_s for other in records) <= 2


def test_what_the_server_refuses_is_in_every_percentile() -> None:
    with serving(step_s=0.02, max_queue=2, limits=ServerLimits()) as served:
        records = send_load(ServerAddress.of_url(served.url), requests_of(8, 0.0), BYTES, no_word)
    found = LoadFigures.of(records, NO_OBJECTIVE)
    assert (found.num_requests, found.num_finished) == (8, 2)
    assert sum(found.errors.values()) == 6 and all("status 429" in reason for reason in found.errors)
    assert math.isinf(found.ttft_s["p50"]) and math.isinf(found.itl_s["p99"])


def test_tokens_are_drawn_from_those_that_the_server_has(served: Served) -> None:
    """A model of bytes is loaded without an option, though most vocabularies are larger."""
    records = send_load(ServerAddress.of_url(served.url), requests_of(6, 0.0), LoadPlan(), no_word)
    assert not LoadFigures.of(records, NO_OBJECTIVE).errors


def test_failures_that_differ_in_numbers_only_are_told_once() -> None:
    """The most first, each by its first."""
    said = ["status 503: later", *(f"status 400: {n} tokens; 128 fit" for n in (500, 600, 700))]
    found = LoadFigures.of([LoadRecord(0.0, error=each) for each in said], NO_OBJECTIVE)
    assert found.errors == {"status 400: 500 tokens; 128 fit": 3, "status 503: later": 1}
    assert list(found.errors) == ["status 400: 500 tokens; 128 fit", "status 503: later"]


def test_a_client_who_thinks_sends_later(served: Served) -> None:
    """Two clients begin half a thought apart; nobody sends before its thought is over, and latencies do not count it."""
    plan = LoadPlan(clients=2, think_s=0.4)
    records = send_load(ServerAddress.of_url(served.url), requests_of(4, 0.0), plan, no_word)
    due = sorted(each.due_s for each in records)
    assert due[:2] == pytest.approx([0.0, 0.2]) and due[2] >= records[0].end_s + 0.4
    assert all(each.ttft_s < 0.3 for each in records)


def test_a_server_that_breaks_off_or_talks_nonsense_fails_the_request() -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\": [{}]}\n\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:",
        b"HTTP/1.1 200 OK\r\n\r\ndata: {\n\ndata: [DONE]\n\n",
        b"HTTP/1.1 200 OK\r\n\r\ndata: [1]\n\ndata: [DONE]\n\n",
        b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n",
        b"SSH-2.0\r\n\r\n",
        b"",
    ]  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for text in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(text)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        requests = [Request(f"r{n}", 4, 4) for n in range(len(answers))]
        plan = LoadPlan(model="any", clients=1, timeout_s=10)
        records = send_load(ServerAddress.of_url(url), requests, plan, no_word)
        thread.join()
    assert all(each.error for each in records) and len(records) == len(answers)
    assert LoadFigures.of(records, NO_OBJECTIVE).num_finished == 0


def test_a_server_that_is_not_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ExecutionError, match="cannot be reached"):
        send_load(ServerAddress.of_url(f"http://127.0.0.1:{port}"), requests_of(1), LoadPlan(), no_word)
    for url in ("here", "ftp://a", "http://a:b", "http://"):
        with pytest.raises(SpecError, match="URL"):
            ServerAddress.of_url(url)
    with pytest.raises(SpecError, match="no requests"):
        send_load(ServerAddress.of_url("http://a"), [], LoadPlan(), no_word)


def test_prompts_agree_where_prefixes_do() -> None:
    one, two = Request("a", 40, 1, block_keys=(7, 8)), Request("b", 40, 1, block_keys=(7, 9))
    first, second = (prompt_of(each, 16, 1000, 0) for each in (one, two))
    assert len(first) == len(second) == 40
    assert first[:16] == second[:16] and first[16:32] != second[16:32] and first[32:] != second[32:]
    assert prompt_of(one, 16, 1000, 1) != first and prompt_of(one, 16, 1000, 0) == first
    assert prompt_of(Request("c", 2, 1, prompt=(5, 6)), 16, 1000, 0) == [5, 6]


def test_goodput_counts_what_was_in_time() -> None:
    quick = LoadRecord(0.0, 0.0, [0.1, 0.2, 0.3], 0.3, 1, 3)
    slow = LoadRecord(0.0, 0.0, [1.0, 1.1, 1.2], 2.0, 1, 3)
    lost = LoadRecord(0.0, 0.0, [0.1], error="gone")
    found = LoadFigures.of([quick, slow, lost], LatencyObjective(ttft_s=0.5))
    assert found.goodput_per_s == pytest.approx(1 / 2.0) and found.errors == {"gone": 1}
    assert found.ttft_s["p50"] == 1.0 and math.isinf(found.ttft_s["p90"])
    assert quick.tpot_s == pytest.approx(0.1) and not slow.meets(LatencyObjective(tpot_s=0.05))
