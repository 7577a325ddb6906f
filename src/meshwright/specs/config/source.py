"""Finding a model by what people type: a preset, a folder, a config.json, or an id in the local hub cache."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from meshwright.specs.config.hugging_face import model_from_config
from meshwright.specs.config.trained_model import trained_model
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.model.model import ModelSpec

CONFIG_FILE = "config.json"


def load_model(reference: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec) -> ModelSpec:
    """The model that `reference` names. Never touches the network.

    Args:
        reference: a preset's name ("llama-3.1-8b", case ignored), a folder with a config.json, such a file,
            a checkpoint or a folder of such,
            its parsed content, an id of the Hugging Face hub that is in the local cache or is a preset's, or
            a ModelSpec (returned as it is).

    Raises:
        UnknownNameError: nothing of that name; lists near matches.
        SpecError: the config.json cannot be read, lacks a field, or contradicts itself.
    """
    if isinstance(reference, ModelSpec):
        return reference
    if isinstance(reference, Mapping):
        return model_from_config(reference, name=str(reference.get("_name_or_path") or "model"))
    if not isinstance(reference, str | os.PathLike):
        raise SpecError(
            f"a model is given as {type(reference).__name__}",
            allowed="a name, a config.json or its folder, its parsed content, or a ModelSpec",
            next="modules of your own are trained with Source(modules=...), by a plan for a model of as many layers",
        )
    path = Path(reference)
    if path.is_file():
        return _from_file(path, path.parent.name if path.name == CONFIG_FILE else path.stem)
    if path.is_dir():
        trained = None if (path / CONFIG_FILE).is_file() else trained_model(path)
        return trained or _from_file(path / CONFIG_FILE, path.resolve().name)
    text = os.fspath(reference)
    preset = _preset_named(text)
    if preset is not None:
        return _from_preset(preset)
    cached = hub_config_path(text)
    if cached is not None:
        return _from_file(cached, text)
    raise _unknown(text)


Model = load_model  # its name in `meshwright`, beside Cluster and Plan


def preset_model(name: str) -> ModelSpec | None:
    """The model of the package with exactly this name; None: there is none."""
    preset = _presets().get(name.lower())
    return _from_preset(preset) if preset and preset["name"] == name else None


def model_presets() -> tuple[str, ...]:
    """Names of the models that come with the package, sorted."""
    return tuple(sorted(_presets()))


def hub_config_path(model_id: str) -> Path | None:
    """config.json of a hub id ("owner/name") in the local Hugging Face cache, or None.

    The cache is HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else the same below
    ~/.cache, as huggingface_hub looks. The snapshot is that of `refs/main`, else the newest one.
    """
    if model_id.count("/") != 1 or ".." in model_id:
        return None
    folder = _hub_cache() / ("models--" + model_id.replace("/", "--"))
    reference = folder / "refs" / "main"
    if reference.is_file():
        named = folder / "snapshots" / reference.read_text().strip() / CONFIG_FILE
        if named.is_file():
            return named
    found = sorted(folder.glob(f"snapshots/*/{CONFIG_FILE}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def _hub_cache() -> Path:
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache_home).expanduser() / "huggingface" / "hub"


@cache
def _presets() -> Mapping[str, Mapping[str, Any]]:
    """Preset files by lower-case name; each holds `name`, `hub_id`, `source` and `config`."""
    folder = resources.files("meshwright.specs") / "presets" / "models"
    files = (entry for entry in folder.iterdir() if entry.name.endswith(".json"))
    contents = (json.loads(entry.read_text(encoding="utf-8")) for entry in files)
    return {content["name"].lower(): content for content in contents}


def _preset_named(text: str) -> Mapping[str, Any] | None:
    lowered = text.lower()
    if lowered in _presets():
        return _presets()[lowered]
    return next((preset for preset in _presets().values() if preset["hub_id"].lower() == lowered), None)


def _from_preset(preset: Mapping[str, Any]) -> ModelSpec:
    return model_from_config(preset["config"], name=preset["name"], where=f"preset {preset['name']}")


def _from_file(path: Path, name: str) -> ModelSpec:
    return model_from_config(_read_json(path), name=name or "model", where=str(path))


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise SpecError(
            f"{path.parent} has no {CONFIG_FILE}",
            allowed="the folder of a Hugging Face model, or checkpoints",
        )
    try:
        content = json_of(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpecError(f"{path} is not JSON: {error}", allowed="the config.json of a model") from None
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read: {error.strerror}", allowed="a readable config.json"
        ) from None
    if not isinstance(content, dict):
        raise SpecError(
            f"{path} holds a {type(content).__name__}", allowed="a JSON object with the model's fields"
        )
    return content


def _unknown(text: str) -> UnknownNameError:
    """A path that is not there says so; a hub id says that nothing is downloaded."""
    hint = "a folder, a config.json or an id in the local Hugging Face cache would do as well"
    if text.endswith(".json") or text.startswith((".", "/", "~")):
        hint = "no such file or folder"
    elif "/" in text:
        hint = f"nothing is downloaded: `hf download {text} config.json` puts it into the local cache"
    return UnknownNameError("model", text, model_presets(), next=hint)
