"""Adapters over HTTP: loaded, asked for as a model, dropped while they are used, and only from where the server allows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import openai
import pytest
from tests.serving.api.conftest import Served, serving


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with two adapters, a folder that is none, and a way out; beside it an adapter that nobody may load."""
    for name in ("root/one", "root/two", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "adapter.txt").touch()
    (tmp_path / "root" / "none").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    return tmp_path / "root"


@pytest.fixture
def served(root: Path) -> Iterator[Served]:
    with serving(adapters_folder=root, step_s=0.002) as made:
        yield made


def load(served: Served, name: str, path: str) -> httpx.Response:
    return httpx.post(served.url + "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})


def unload(served: Served, name: str) -> httpx.Response:
    return httpx.post(served.url + "/v1/unload_lora_adapter", json={"lora_name": name})


def said(client: openai.OpenAI, model: str) -> str:
    return client.completions.create(model=model, prompt="SAY:yes|", max_tokens=9).choices[0].text


def test_an_adapter_is_a_model_as_long_as_it_is_loaded(served: Served, root: Path) -> None:
    client = served.client()
    assert load(served, "loud", "one").status_code == 200
    assert load(served, "louder", str(root / "two")).status_code == 200
    assert (said(client, "said"), said(client, "loud")) == ("yes", "YES")
    assert [each.id for each in client.models.list()] == ["said", "loud", "louder"]
    schema = httpx.get(served.url + "/openapi.json").json()["components"]["schemas"]["ChatBody"]
    assert schema["properties"]["model"]["enum"] == ["said", "loud", "louder"]
    assert load(served, "third", "one").json()["error"]["message"].startswith("2 adapters are loaded")
    assert unload(served, "loud").status_code == 200
    with pytest.raises(openai.NotFoundError, match="no model named 'loud'"):
        said(client, "loud")
    assert load(served, "loud", "one").status_code == 200 and said(client, "loud") == "YES"
    assert unload(served, "lost").json()["error"]["code"] == "adapter_not_found"


@pytest.mark.parametrize(
    "path", ["../outside", "link", "/etc", "none/..//../outside", "nowhere", "none", "a\x00b"]
)
def test_what_stands_outside_or_is_no_adapter_is_refused(served: Served, root: Path, path: str) -> None:
    answer = load(served, "loud", path)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "lora_path"
    assert str(root) not in answer.text


def test_a_name_is_once_and_never_the_models_own(served: Served) -> None:
    assert load(served, "said", "one").status_code == 400
    assert load(served, "loud", "one").status_code == 200
    assert "loaded already" in load(served, "loud", "two").json()["error"]["message"]


def test_who_asked_before_it_was_unloaded_gets_all_of_it(served: Served) -> None:
    load(served, "loud", "one")
    client, parts = served.client(), list[str]()
    stream = client.completions.create(model="loud", prompt="count", max_tokens=400, stream=True)
    parts.append(next(iter(stream)).choices[0].text)
    assert unload(served, "loud").status_code == 200
    figures = httpx.get(served.url + "/metrics").text
    assert (
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="loud",waiting_lora_adapters=""}'
        in figures
    )
    parts += [chunk.choices[0].text for chunk in stream]
    assert len("".join(parts)) == 400 and "".join(parts).isupper()


@pytest.mark.slow
def test_many_ask_while_adapters_come_and_go(served: Served) -> None:
    """Everyone is answered in capital letters, or told that there is no such model; nobody gets the model's own words."""
    found, is_over = list[str](), threading.Event()

    def ask() -> None:
        client = served.client()
        while not is_over.is_set():
            try:
                found.append(said(client, "loud"))
            except openai.NotFoundError:
                found.append("none")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    for _ in range(20):
        assert load(served, "loud", "one").status_code == 200
        assert unload(served, "loud").status_code == 200
    load(served, "loud", "one")
    while found.count("YES") < 8:
        pass
    is_over.set()
    for each in threads:
        each.join(20)
    assert set(found) <= {"YES", "none"}


def test_a_server_without_a_folder_loads_nothing() -> None:
    with serving() as served:
        answer = load(served, "loud", "one")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "adapters_not_allowed"
    assert json.loads(answer.text)["error"]["message"].count("--adapters-folder") == 1
