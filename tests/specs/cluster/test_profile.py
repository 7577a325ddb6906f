"""Tests of specs/cluster/profile.py: a profile survives its file, and refuses what is none."""

import json
import logging

import pytest

from meshwright.specs.cluster.profile import (
    PROFILE_SCHEMA,
    PassSample,
    Profile,
    Sample,
    cache_path,
    keep,
    kept,
)
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec


def small_profile() -> Profile:
    model = ModelSpec.decoder(2, 64, 4)
    return Profile(
        device="a processor",
        num_processes=2,
        tables={"matmul": (Sample((8, 8, 8), 1e-6, 0.1),), "all_reduce": (Sample((4,), 1e-4),)},
        constants={"compute_slowdown": 1.5},
        passes=(PassSample("F", model.to_dict(), 2, True, False, 1, 128, 0.01, 0.02),),
        measured="2020-01-01T00:00:00+00:00",
    )


def test_file_gives_the_same_profile(tmp_path):
    path = tmp_path / "deep" / "profile.json"
    small_profile().save(path)
    assert Profile.load(path) == small_profile()
    assert [entry.name for entry in path.parent.iterdir()] == ["profile.json"]


def test_newer_schema_is_refused_with_its_number():
    data = json.loads(small_profile().to_json())
    data["schema"] = PROFILE_SCHEMA + 1
    with pytest.raises(SpecError, match=rf"schema {PROFILE_SCHEMA + 1}.*up to {PROFILE_SCHEMA}"):
        Profile.from_json(json.dumps(data))


@pytest.mark.parametrize("schema", range(1, PROFILE_SCHEMA))
def test_profiles_of_older_schemas_load(schema):
    data = json.loads(small_profile().to_json()) | {"schema": schema}
    if schema < 2:
        del data["process_factors"]
    assert Profile.from_json(json.dumps(data)) == small_profile()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "plan"}, "no profile"),
        ({"schema": "one"}, "schema 'one'"),
        ({"tables": {"matmul": [[[8, 8], 1e-6, 0.0]]}}, "m.*n.*k"),
        ({"tables": {"matmul": [[[8, 8, 8], -1.0, 0.0]]}}, "seconds above 0"),
        ({"tables": {"sorting": []}}, "sorting"),
        ({"constants": {"compute_slowdown": -1}}, "compute_slowdown"),
        ({"passes": [{"name": "F"}]}, "malformed"),
        ({"tables": 3}, "malformed"),
        ({"tables": {"matmul": [[[8, 8, 8]]]}}, "malformed"),
        ({"tables": {"matmul": [[[8, 8, float("inf")], 1e-6, 0.0]]}}, "malformed"),
        ({"num_processes": float("inf")}, "malformed"),
    ],
)
def test_malformed_profiles_are_refused(change, message):
    data = json.loads(small_profile().to_json()) | change
    with pytest.raises(SpecError, match=message):
        Profile.from_json(json.dumps(data))


def test_text_that_is_no_json_and_missing_file(tmp_path):
    with pytest.raises(SpecError, match="not a profile"):
        Profile.from_json("{")
    with pytest.raises(SpecError, match="meshwright calibrate"):
        Profile.load(tmp_path / "none.json")


def test_cache_path_honours_xdg_and_ignores_relative(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_path() == tmp_path / "meshwright" / "profile.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_path("x") == tmp_path / "home" / ".cache" / "meshwright" / "x.json"


def test_unwritable_cache_gives_one_warning(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        assert keep(small_profile(), blocked / "profile.json") is None
    assert len(caplog.records) == 1


def test_kept_profile_comes_back_and_a_broken_one_is_ignored(tmp_path, caplog):
    path = tmp_path / "profile.json"
    assert kept(path) is None
    assert keep(small_profile(), path) == path
    assert kept(path) == small_profile()
    path.write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert kept(path) is None
    assert "ignored" in caplog.text
