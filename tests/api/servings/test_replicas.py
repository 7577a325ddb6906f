"""Where replicas run: cores or GPUs of their own, and what of their options is told to a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.api.servings import replica, replicas
from meshwright.api.servings.adapter_options import AdapterOptions
from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.servings.replica import GROUPS, made, said_of, serve_front, told_of
from meshwright.api.servings.replicas import VISIBLE, places
from meshwright.api.servings.serving import ServerOptions
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.weight.expert_loads import ExpertLoads, SlotRows
from meshwright.specs.error import SpecError
from meshwright.specs.slot import TRUST

ON_CPU, ON_GPU = EngineChoice(engine="torch", device="cpu"), EngineChoice(engine="torch", device="cuda", tp=2)


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replicas, "available_cores", lambda: (0, 1, 4, 5, 6))
    choice, found = places(tmp_path, ON_CPU, 2)
    assert [each.cores for each in found] == [(0, 1), (4, 5)] and choice.num_threads == 2
    choice, found = places(tmp_path, ON_CPU, 6)
    assert [each.cores for each in found] == [(0,), (1,), (4,), (5,), (6,), (0,)] and choice.num_threads == 1
    said = EngineChoice(engine="torch", device="cpu", num_threads=3)
    assert places(tmp_path, said, 2)[0] == said and not any(
        each.cores for each in places(tmp_path, said, 2)[1]
    )


def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VISIBLE, "2,3,5,7,8")
    _, found = places(tmp_path, ON_GPU, 2)
    assert [each.environment for each in found] == [{VISIBLE: "2,3"}, {VISIBLE: "5,7"}]
    with pytest.raises(SpecError, match="3 replicas of 2 GPUs on 5"):
        places(tmp_path, ON_GPU, 3)
    monkeypatch.delenv(VISIBLE)
    monkeypatch.setattr(replicas, "_num_gpus", lambda: 4)
    assert [each.environment for each in places(tmp_path, ON_GPU, 2)[1]] == [
        {VISIBLE: "0,1"},
        {VISIBLE: "2,3"},
    ]
    with pytest.raises(SpecError, match="cuda:1"):
        places(tmp_path, EngineChoice(engine="torch", device="cuda:1"), 2)


def test_options_reach_a_replica_as_they_are() -> None:
    choice = EngineChoice(dtype="float32", num_blocks=7, chat_template=Path("a.jinja"))
    for group in (choice, ServerLimits(drain_s=3.5)):
        told = json.loads(json.dumps(said_of(group)))
        assert made(type(group), told) == group
    assert set(said_of(choice)) == {"dtype", "num_blocks", "chat_template"}
    assert all(said_of(kind()) == {} for kind in GROUPS.values())


def test_a_replica_serves_what_its_front_was_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On its own socket; a key's file and a name go along, the front's address does not."""
    groups = {
        "choice": EngineChoice(engine="torch", num_threads=2), "server": ServerOptions(name="m", max_queue=7),
        "limits": Limits(max_sequences=9), "policy": ContinuousBatching(is_fair=True), "bounds": ServerLimits(prompts=3),
    }  # fmt: skip
    adapting = AdapterOptions((("mine", tmp_path),), tmp_path, most=4)
    told = json.loads(json.dumps({**told_of("models/m", groups, adapting), "path": "/s", "number": 1}))
    asked: dict[str, Any] = {}

    def serving(model: str, **given: Any) -> dict[str, int]:
        given.pop("announce")("unix:/s", 99)
        asked.update(given, model=model)
        return {"num_open": 0}

    monkeypatch.setattr(replica, "serve", serving)
    said: list[int] = []
    assert serve_front(told, said.append) == {"num_open": 0} and said == [99]
    server = ServerOptions(name="m", max_queue=7, socket=Path("/s"))
    assert asked == {**groups, "server": server, "model": "models/m", "adapting": adapting}


def test_a_replica_tells_its_front_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front sums what its replicas say: loads of experts, which one server shows when it ends, are none of it."""
    loads = ExpertLoads.of([SlotRows(0, 0, (0, 1), (3, 1))])
    served = {"num_requests": 2, "num_open": 0, "experts": loads}
    monkeypatch.setattr(replica, "serve", lambda model, **asked: dict(served))
    monkeypatch.setattr(TRUST, "is_given", False)
    choice = EngineChoice(engine="torch", tp=2, ep=2, expert_placement=Path("a.experts.json"))
    groups = {"choice": choice, "server": ServerOptions(), "limits": Limits(), "policy": ContinuousBatching()}
    told = told_of("model", {**groups, "bounds": ServerLimits()}, AdapterOptions())
    assert made(EngineChoice, told["choice"]) == choice
    assert serve_front({**told, "path": "socket"}, lambda tokens: None) == {"num_requests": 2, "num_open": 0}
