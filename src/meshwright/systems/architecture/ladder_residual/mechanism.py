"""The variant: a model whose parts read the residual stream without the result right before them."""

from __future__ import annotations

from dataclasses import replace

from meshwright.specs.model.model import ModelSpec


def ladder_residual(model: ModelSpec) -> ModelSpec:
    """The model with a ladder residual: the same parameters, another function; to be trained so."""
    return replace(model, has_ladder_residual=True)
