"""What OpenVINO's runtime serves here, and what it does not, one line each; importable where OpenVINO is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from meshwright.specs.error import MissingDataError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.rotary_scaling import ROTARY_SCALINGS

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
PACKAGES = ("openvino", "nncf")
INSTALL = "pip install 'meshwright[serve-cpu]'"
# What other engines do and this one does not, and why.
LACKING: Mapping[str, str] = {
    "experts": "OpenVINO has no operation here that computes only the experts a token is routed to",
    "tensor parallelism": "its runtime has no exchange between processes, and a cut at each exchange costs a call each",
    "adapters": "LoRA additions are not in the graph that is compiled",
}
OTHER_ENGINE = "serve it with --engine torch"


def is_installed() -> bool:
    """Are the packages of the extra `serve-cpu` here? None of them is imported."""
    return all(find_spec(name) is not None for name in PACKAGES)


def check_installed() -> None:
    """Raises MissingDataError with what to install."""
    if not is_installed():
        raise MissingDataError(f"the OpenVINO engine needs {' and '.join(PACKAGES)}", next=INSTALL)


def refusal(model: ModelSpec) -> str:
    """Why this model is not served here, in one line; empty where it is."""
    if model.experts:
        return f"{model.name} has experts: {LACKING['experts']}"
    if model.architecture not in FAMILIES:
        return f"{model.name} is a {model.architecture} model, and the graphs here are those of {', '.join(FAMILIES)}"
    if model.rotary_scaling and model.rotary_scaling.kind not in ROTARY_SCALINGS:
        return f"{model.name} has {model.rotary_scaling.kind} rotary scaling, which is not computed here"
    if model.final_logit_cap or any(block.attention.logit_cap for block in model.layers):
        return f"{model.name} caps scores or logits, which the paged-attention operation cannot"
    if model.num_encoder_layers:
        return f"{model.name} is an encoder-decoder"
    return ""


def check_model(model: ModelSpec) -> None:
    """Raises SpecError where the model is not served here."""
    if reason := refusal(model):
        raise SpecError(reason, allowed=f"dense models of {', '.join(FAMILIES)}", next=OTHER_ENGINE)
