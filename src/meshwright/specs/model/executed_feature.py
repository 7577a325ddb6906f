"""What of a model the executor builds; every model can be planned and simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.specs.error import SpecError
from meshwright.specs.model.rotary_scaling import ROTARY_SCALINGS

if TYPE_CHECKING:
    from meshwright.specs.model.model import ModelSpec


def unexecuted_features(model: ModelSpec) -> tuple[str, ...]:
    """What a model has that the executor's block has not; empty: it can be trained here."""
    found = {
        "experts": model.num_experts > 0,
        "latent attention": model.has_latent_attention,
        "attention sinks": model.has_attention_sinks,
        f"{model.architecture} blocks": model.is_gemma,
        f"{model.rope_scaling} rotary scaling": model.rope_scaling not in ("", *ROTARY_SCALINGS),
    }
    return tuple(name for name, is_there in found.items() if is_there)


def check_executed(model: ModelSpec) -> None:
    """Raises SpecError naming what the executor does not build, where there is such a thing."""
    if not model.is_executable:
        raise SpecError(
            f"{model.name} has {', '.join(model.unexecuted_features)}, which the executor does not build",
            allowed="dense models of the GPT-2, Llama, Qwen 2, Qwen 3 and Mistral families",
            next="plan and simulate it, or train a dense model",
        )
