"""Finding a model: presets, files, folders, the local hub cache; and what is said when there is none."""

import json
import socket

import pytest
from tests.specs.configs import LLAMA

from meshwright.specs import ModelSpec, SpecError, UnknownNameError, load_model, model_presets


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """A look-up that opens a socket fails the test."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "socket", refuse)


def written(folder, content=LLAMA):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    return folder / "config.json"


def test_presets_by_name_any_case_and_by_hub_id():
    assert load_model("Qwen3-32B").num_parameters == 32762123264
    assert load_model("meta-llama/Llama-3.1-8B") == load_model("llama-3.1-8b")
    assert "gpt2-xl" in model_presets()


def test_file_folder_dictionary_and_spec_are_one_model(tmp_path):
    path = written(tmp_path / "mine")
    models = [load_model(path), load_model(str(path.parent)), load_model(LLAMA)]
    assert len({model.digest for model in models}) == 1
    assert models[0].name == "mine" and models[0].source == str(path)
    assert load_model(models[0]) is models[0]


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_hub_id_in_the_local_cache(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    folder = (tmp_path / "hub" if variable == "HF_HOME" else tmp_path) / "models--some--model"
    written(folder / "snapshots" / "old", {**LLAMA, "num_hidden_layers": 9})
    written(folder / "snapshots" / "new")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("new\n")
    model = load_model("some/model")
    assert model.num_layers == 3 and model.name == "some/model"


def test_unknown_names_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-8b"):
        load_model("lama-3.1-8b")
    with pytest.raises(UnknownNameError, match="nothing is downloaded"):
        load_model("some/model")
    with pytest.raises(UnknownNameError, match="no such file"):
        load_model("./missing/config.json")


@pytest.mark.parametrize("content", ["{", "[1, 2]", "\x00"])
def test_a_file_that_is_no_config_is_refused_by_name(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(SpecError, match=r"config\.json"):
        load_model(path)


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"has no config\.json"):
        load_model(tmp_path)


def test_decoder_by_dimensions_is_accepted_as_it_is():
    model = ModelSpec.decoder(2, 64, 4)
    assert load_model(model) is model
