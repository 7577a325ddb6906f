"""ServedModel: a model to serve and where its parameters come from: a folder of Hugging Face, or a checkpoint of ours."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from meshwright.executor.capability import check_model
from meshwright.executor.models.weights.hugging_face import HuggingFaceSource, read_config
from meshwright.executor.models.weights.initialisation import ParameterSource
from meshwright.executor.models.weights.parameter_map import NameMap
from meshwright.executor.serving.family_traits import LLAMA, FamilyTraits
from meshwright.executor.serving.gemma import GEMMA3, names_of, open_gemma
from meshwright.executor.serving.source.quantised_tensors import quantised_tensors
from meshwright.specs.config.source import CONFIG_FILE, load_model
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec

HALF = ("bfloat16", "float16")  # formats of files that are served in bfloat16 where nobody says another


@dataclass(frozen=True)
class ServedModel:
    """``dtype``: the format that its files ask for. ``traits``: what its layers compute beside what dimensions say."""

    model: ModelSpec
    source: ParameterSource
    dtype: str
    folder: Path
    traits: FamilyTraits = LLAMA

    @property
    def names(self) -> NameMap:
        """Of its parameters, and their shapes."""
        return names_of(self.model)


def open_served(folder: str | os.PathLike[str]) -> ServedModel:
    """A folder of Hugging Face (config.json, safetensors), a checkpoint of a training, or a folder of these.

    Raises:
        SpecError, ExecutionError: it is neither, its files are broken, or the model has what is not served.
    """
    root = Path(folder)
    if not (root / CONFIG_FILE).is_file():
        from meshwright.executor.serving.source.stored_source import (
            open_checkpoint,  # what ranks of folders do not load
        )

        model, stored, dtype = open_checkpoint(root)
        check_served(model)
        return ServedModel(model, stored, _dtype(dtype), root)
    model, config = load_model(root), read_config(root)
    check_served(model)
    dtype = _dtype(str(config.get("torch_dtype") or config.get("dtype")))
    weights = quantised_tensors(root, config, names_of(model))
    if model.architecture == GEMMA3:
        gemma, traits = open_gemma(root, model, config, weights)
        return ServedModel(model, gemma, dtype, root, traits)
    return ServedModel(model, HuggingFaceSource(root, model, weights=weights), dtype, root)


def _dtype(stored: str) -> str:
    return "bfloat16" if stored in HALF else "float32"


def check_served(model: ModelSpec) -> None:
    """Raise SpecError or ExecutionError naming what this engine does not compute, where there is such a thing."""
    if model.architecture != GEMMA3:  # served, not trained
        check_model(model)
    missing = {
        "an encoder": model.num_encoder_layers > 0,
        "a ladder residual or parallel branches": model.hands_on_results,
        "routers of cosines": any(
            each.routing_in(model.architecture).cosine_rank
            for each in (kind.experts for kind in model.kinds)
            if each
        ),
        "caps of scores or logits": model.final_logit_cap > 0
        or any(block.attention.logit_cap for block in model.kinds),
    }
    if found := [name for name, is_there in missing.items() if is_there]:
        raise ExecutionError(
            f"{model.name} has {' and '.join(found)}, which the torch engine does not serve",
            allowed="decoders of the GPT-2, Llama, Qwen, Mistral, Mixtral, DeepSeek, GPT-OSS and Gemma 3 families",
        )
