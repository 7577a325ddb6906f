"""The workbench's paths: documents of states, mistakes in words, searches, what is pasted."""

from __future__ import annotations

import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from starlette.testclient import TestClient
from tests.workbench.reading import section, values
from tests.workbench.server.client import PORT, STATE, asked, client, refused

from meshwright import Cluster, Model, Workload, import_plan
from meshwright.prediction.predicted import predict
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import Plan
from meshwright.workbench.document.document import Document
from meshwright.workbench.server.app import Workbench, create_app
from meshwright.workbench.server.session import Session
from meshwright.workbench.server.state import asked_of

__all__ = ["client"]
EVIL = "<script>alert(1)</script>"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "intermediate_size": 1408, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
MEGATRON = (
    "torchrun pretrain_gpt.py --num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 1000 --micro-batch-size 2 --global-batch-size "
    "64 --bf16 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"
)

OURS = (
    'schema = 1\nname = "ours"\n[[devices]]\npreset = "H100"\ncount = 8\n[[levels]]\nname = "node"\nnum_devices = 8\n'
    'bandwidth = "300GB/s"\nlatency = "2us"\nwiring = "switch"\n'
)


def test_a_state_is_the_plan_that_it_says(client: TestClient) -> None:
    data = asked(client, "/api/view", {"state": {**STATE, "zero": "2", "theme": "dark"}, "sequence": 7})
    cluster = Cluster("8xH100")
    plan = Plan.of(
        Model("llama-3.2-1b"), cluster, Workload(16, 1024), pp=2, tp=2, sharding="zero2", sequence_parallel=True,
        dtype="bfloat16", master_dtype="float32", reduction_dtype="float32",
    )  # fmt: skip
    assert data["sequence"] == 7 and data["kind"] == "workbench"
    assert section(data, "composition")["total_s"] == pytest.approx(predict(plan, cluster).step.value)
    assert [each["type"] for each in data["sections"]] == ["timeline", "composition", "table", "topology"]


def test_words_without_meaning_are_kept_and_told(client: TestClient) -> None:
    data = asked(client, "/api/view", {"state": {**STATE, "colour": EVIL}, "parts": []})
    assert any("colour" in note and EVIL in note for note in data["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"model": "llama-3.1-8"}, "model"),
        ({"model": "/etc/passwd"}, "model"),
        ({"model": "pasted-0123"}, "pasted into another session"),
        ({"cluster": "../ours.toml"}, "names no cluster"),
        ({"cluster": "this computer"}, "device"),
        ({"cluster": "1000000xH100"}, "devices"),
        ({"tp": "0"}, "tp"),
        ({"tp": "3"}, "3"),
        ({"tp": "9" * 50}, "tp"),
        ({"seq": "many"}, "seq"),
        ({"schedule": "./mine.py:wave"}, "schedule"),
        ({"recompute": "half"}, "recompute"),
        ({"global-batch": "2000000"}, "at most"),
        ({"model": 7}, "texts"),
    ],
)
def test_what_cannot_be_is_told_in_words(client: TestClient, words: dict[str, Any], said: str) -> None:
    error = refused(client, "/api/view", {"state": {**STATE, **words}})
    assert said in f"{error['message']} {error['allowed']}" and set(error) == {"message", "allowed", "next"}


@pytest.mark.parametrize(
    "body", [[], "x", {"state": []}, {"state": STATE, "parts": ["all"]}, {"state": STATE, "parts": 3}]
)
def test_a_body_that_is_none(client: TestClient, body: Any) -> None:
    refused(client, "/api/view", body)


def test_the_inside_of_a_stage(client: TestClient) -> None:
    data = asked(client, "/api/segments", {"state": STATE, "stage": 1})
    (trace,) = section(data, "timeline")["traces"]
    assert {"ALL_GATHER", "REDUCE_SCATTER"} <= {
        trace["names"][name] for name in values(trace["columns"]["name"])
    }
    assert len(trace["devices"]) == 1
    assert "stage 5" in refused(client, "/api/segments", {"state": STATE, "stage": 5})["message"]
    assert (
        "nothing" in refused(client, "/api/segments", {"state": {**STATE, "tp": "1"}, "stage": 0})["message"]
    )


def searched(client: TestClient, state: dict[str, str]) -> dict[str, Any]:
    """The document of a search."""
    id = asked(client, "/api/plan", {"state": state}, 202)["job"]
    ends_s = time.monotonic() + 120
    while (found := client.get(f"/api/plan/{id}").json())["state"] in ("waiting", "running"):
        assert time.monotonic() < ends_s
        time.sleep(0.05)
    document: dict[str, Any] = found["document"]
    return document


def test_a_search_ends_with_plans_that_can_be_opened(client: TestClient) -> None:
    found = searched(client, STATE)
    plans, frontier = (section(found, kind) for kind in ("plans", "frontier"))
    assert len(plans["ids"]) == len(plans["rows"]) and any(point["is_best"] for point in frontier["points"])
    opened = asked(client, "/api/view", {"state": dict(parse_qsl(plans["ids"][0])), "parts": ["composition"]})
    assert opened["facts"][0]["value"] == plans["rows"][0]["step"]


def test_a_cluster_of_devices_that_nobody_measured_is_searched_as_it_is_seen(client: TestClient) -> None:
    own = '{ name = "Zeta", memory = "48GB", memory_bandwidth = "1TB/s", flops_per_s = { bfloat16 = "200T" }, count = 8 }'
    text = OURS.replace('[[devices]]\npreset = "H100"\ncount = 8\n', f"devices = [{own}]\n")
    state = {**STATE, "cluster": asked(client, "/api/cluster", {"text": text})["name"]}
    plans = section(searched(client, state), "plans")
    opened = asked(client, "/api/view", {"state": dict(parse_qsl(plans["ids"][0])), "parts": []})
    assert opened["facts"][0]["value"] == plans["rows"][0]["step"]
    assert any("data sheet of Zeta" in note for note in opened["notes"])


def test_what_is_there_before_the_first_view_is_not_collected_again_with_every_move() -> None:
    gc.unfreeze()
    workbench = Workbench()
    try:
        workbench.warm()
        seen = TestClient(create_app(workbench, PORT), base_url=f"http://127.0.0.1:{PORT}")
        asked(seen, "/api/view", {"state": STATE, "parts": []})
        assert gc.get_freeze_count() > 0
    finally:
        workbench.close()
        gc.unfreeze()


def test_a_move_does_not_wait_for_what_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, workbench = threading.Event(), Workbench()
    made = workbench._document

    def held(state: object, parts: tuple[str, ...]) -> Document:
        assert "binds" not in parts or gate.wait(30)
        return made(state, parts)

    monkeypatch.setattr(workbench, "_document", held)
    with (
        TestClient(create_app(workbench, PORT), base_url=f"http://127.0.0.1:{PORT}") as seen,
        ThreadPoolExecutor() as pool,
    ):
        later = pool.submit(asked, seen, "/api/view", {"state": STATE, "parts": ["binds"]})
        assert asked(seen, "/api/view", {"state": STATE, "parts": ["composition"]})["sections"]
        assert not later.done()
        gate.set()
        assert later.result()["sections"]
    workbench.close()


def test_a_search_can_be_given_up(client: TestClient) -> None:
    id = asked(client, "/api/plan", {"state": {"model": "llama-3.1-70b", "cluster": "32x8xH100"}}, 202)["job"]
    assert client.delete(f"/api/plan/{id}").json()["state"] == "cancelled"
    time.sleep(0.2)
    assert client.get(f"/api/plan/{id}").json()["state"] == "cancelled"
    assert client.get("/api/plan/nothing").status_code == 404


def test_a_pasted_model_is_text_wherever_it_is_named(client: TestClient) -> None:
    name = asked(client, "/api/model", {"text": json.dumps({**CONFIG, "_name_or_path": EVIL})})["name"]
    data = asked(client, "/api/view", {"state": {**STATE, "model": name}, "parts": ["composition"]})
    assert data["title"].startswith(EVIL), "as text of JSON; the page never makes markup of it"
    assert (
        client.get("/").headers["content-type"].startswith("text/html") and EVIL not in client.get("/").text
    )
    assert EVIL in json.dumps(client.get("/api/catalog").json())


def test_a_pasted_cluster(client: TestClient) -> None:
    found = asked(client, "/api/cluster", {"text": OURS})
    name = found["name"]
    assert found["devices"] == 8 and found in client.get("/api/catalog").json()["clusters"]
    assert asked(client, "/api/view", {"state": {**STATE, "cluster": name}, "parts": []})["title"].endswith(
        name
    )
    assert "'name' is missing" in refused(client, "/api/cluster", {"text": "schema = 1"})["message"]


@pytest.mark.parametrize("model", ["llama-3.1-70b", "mixtral-8x7b", "qwen3-8b"])
def test_the_catalog_says_the_degrees_that_a_model_allows(client: TestClient, model: str) -> None:
    found = {each["name"]: each for each in client.get("/api/catalog").json()["models"]}[model]
    state = {**STATE, "model": model, "cluster": "32x8xH100", "global-batch": "256", "pp": "1"}
    tps = [tp for tp in (1, 2, 4, 8, 16, 32) if is_seen(client, {**state, "tp": str(tp)})]
    assert tps == [tp for tp in found["tps"] if tp <= 32]
    for ep in (2, 4, 8, 16):
        is_allowed = found["experts"] > 0 and found["experts"] % ep == 0
        assert is_seen(client, {**state, "tp": "1", "ep": str(ep)}) == is_allowed


def test_the_catalog_says_how_many_devices_a_cluster_has(client: TestClient) -> None:
    for each in client.get("/api/catalog").json()["clusters"]:
        assert each["name"].startswith("pasted-") or each["devices"] == Cluster(each["name"]).num_devices


def is_seen(client: TestClient, state: dict[str, str]) -> bool:
    body = {"state": state, "parts": ["composition"]}
    return "error" not in client.post("/api/view", json=body).json()


def test_code_that_a_text_names_does_not_run(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("open('ran', 'w')")
    cluster = 'schema = 1\nname = "x"\ncosts = "./mine.py:f"\n[[devices]]\npreset = "H100"\ncount = 8\n'
    plan = plan_text(Plan.of(Model("gpt2"), Cluster("8xH100"), Workload(16, 1024))).replace(
        '"1f1b"', '"./mine.py:wave"'
    )
    refused(client, "/api/cluster", {"text": cluster})
    refused(client, "/api/import", {"text": plan + '\nschedule = "./mine.py:wave"\n'})
    assert not (tmp_path / "ran").exists()


def test_a_script_becomes_a_state_that_is_seen_as_it_is(client: TestClient, tmp_path: Path) -> None:
    taken = asked(client, "/api/import", {"text": MEGATRON, "state": STATE})
    state = taken["state"]
    assert (state["tp"], state["micro"], state["zero"], state["seq"]) == ("2", "2", "1", "512")
    assert taken["notes"][0] == "read as megatron"
    seen = asked(client, "/api/view", {"state": state, "parts": ["composition"]})
    script = tmp_path / "run.sh"
    script.write_text(MEGATRON)
    plan = import_plan(script, "megatron", cluster="8xH100").plan
    step = section(seen, "composition")["total_s"]
    assert step == pytest.approx(predict(plan, Cluster("8xH100"), extrapolate=True).step.value)
    other = asked(client, "/api/view", {"state": {**state, "tp": "4"}, "parts": ["composition"]})
    assert section(other, "composition")["total_s"] != step


def test_a_search_for_what_a_script_says_tells_what_changes_in_it(client: TestClient) -> None:
    """Today's plan stands before the others, is opened as it is, and so are they; in another job it is no today's plan."""
    state = asked(client, "/api/import", {"text": MEGATRON, "state": STATE})["state"]
    found = searched(client, state)
    plans, changes = (
        section(found, "plans"),
        next(each for each in found["sections"] if each["id"] == "changes"),
    )
    assert [row[""] for row in plans["rows"]][:2] == ["today", "1"]
    assert [column["title"] for column in changes["columns"]] == ["option", "today", "best plan"]
    assert "--tensor-model-parallel-size" in {row["option"] for row in changes["rows"]}
    assert "% faster" in changes["note"]
    for id, row in zip(plans["ids"], plans["rows"], strict=True):
        opened = dict(parse_qsl(id))
        assert opened["like"] == state["like"]
        seen = asked(client, "/api/view", {"state": opened, "parts": []})
        assert (
            next(each["value"] for each in seen["facts"] if each["name"] == "time of a step") == row["step"]
        )
    other = searched(client, {**state, "global-batch": "32"})
    assert "today" not in {row[""] for row in section(other, "plans")["rows"]}


def test_a_plan_comes_back_as_it_was(client: TestClient) -> None:
    words = {**STATE, "recompute": "full", "schedule": "interleaved_1f1b", "chunks": "2", "zero": "1"}
    plan = asked_of(words, Session()).plan()
    taken = asked(client, "/api/import", {"text": plan_text(plan)})
    assert taken["notes"] == ["read as a plan"]
    assert asked_of(taken["state"], Session()).plan() == plan
    assert any("another session" in note for note in asked_of(taken["state"], Session()).notes)


def test_another_session_sees_the_same_once_it_has_the_texts(client: TestClient) -> None:
    cluster = asked(client, "/api/cluster", {"text": OURS})["name"]
    state = asked(client, "/api/import", {"text": MEGATRON, "state": {**STATE, "cluster": cluster}})["state"]
    names = [state[word] for word in ("cluster", "model", "base", "like")]
    assert all(name.startswith("pasted-") for name in names)
    sources = client.get("/api/sources", params={"names": ",".join((*names, "pasted-0"))}).json()["sources"]
    assert [each["what"] for each in sources] == ["cluster", "import", "import", "import"]
    other = Workbench()
    friend = TestClient(create_app(other, PORT), base_url=f"http://127.0.0.1:{PORT}")
    try:
        assert "another session" in refused(friend, "/api/view", {"state": state, "parts": []})["message"]
        for each in sources:
            asked(friend, f"/api/{each['what']}", {"text": each["text"]})
        body = {"state": state, "parts": ["composition"]}
        assert asked(friend, "/api/view", body) == asked(client, "/api/view", body)
    finally:
        other.close()


@pytest.mark.parametrize(
    "text", ["", "hello", "{", '{"a": 1}', "a = [", "--num-layers x", "\x00", "[model]\nname = 3\n"]
)
def test_text_that_is_nothing_is_told_in_words(client: TestClient, text: str) -> None:
    error = refused(client, "/api/import", {"text": text, "state": STATE})
    assert error["message"] and "/tmp" not in error["message"]
