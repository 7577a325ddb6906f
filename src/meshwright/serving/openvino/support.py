"""What OpenVINO's runtime serves here, and what it does not, one line each; importable where OpenVINO is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from meshwright.specs.error import MissingDataError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.rotary_scaling import LINEAR, LLAMA3

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
PACKAGES = ("openvino", "nncf")
RELEASE = "2026.4."  # whose paged attention has the inputs that graphs here give it
INSTALL = "pip install 'meshwright[serve-cpu]'"
# What other engines do and this one does not, and why.
LACKING: Mapping[str, str] = {
    "experts": "OpenVINO has no operation here that computes only the experts a token is routed to",
    "tensor parallelism": "its runtime exchanges nothing between processes within a graph",
    "adapters": "a compiled graph has no place for LoRA additions",
}
OTHER_ENGINE = "serve it with --engine torch"


def absence() -> str:
    """Which package of the extra `serve-cpu` is not here, or of another release; empty: none. Nothing is imported."""
    for name in PACKAGES:
        try:
            found = version(name)
        except PackageNotFoundError:
            return f"{name} is not installed"
        if name == PACKAGES[0] and not found.startswith(RELEASE):
            return f"{name} {found} is installed, and graphs are built for {RELEASE}x"
    return ""


def check_installed() -> None:
    """Raises MissingDataError with what to install."""
    if why := absence():
        raise MissingDataError(f"the OpenVINO engine cannot run: {why}", next=INSTALL)


def refusal(model: ModelSpec) -> str:
    """Why this model is not served here, in one line; empty where it is."""
    if model.experts:
        return f"{model.name} has experts: {LACKING['experts']}"
    if model.architecture not in FAMILIES:
        return f"{model.name} is a {model.architecture} model, and the graphs here are those of {', '.join(FAMILIES)}"
    if model.rotary_scaling and model.rotary_scaling.kind not in (LINEAR, LLAMA3):
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
