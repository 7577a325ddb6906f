"""Asking for a part to train: the model, or the plan's, with low-rank additions or frozen parameters."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from meshwright.api.subjects.loading import load
from meshwright.specs.config.source import load_model
from meshwright.specs.error import SpecError
from meshwright.specs.model.adaptation import lora_choices
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.option import option, words_of
from meshwright.specs.plan.plan import Plan

PANEL = "Which part trains"


@dataclass(frozen=True)
class TrainedPart:
    """What trains of a model that trains wholly otherwise; empty: all of it.

    `lora_rank`: of additions to the matrices `lora_targets` (none given: all of a block, where it has experts those of
    attention), scaled by `lora_alpha` / rank (0:
    by 1). `trained`: patterns of the executor's names; with a rank and without patterns the additions train only.
    """

    lora_rank: int = option(0, "Train low-rank additions of this rank only.", panel=PANEL, least=1)
    lora_alpha: float = option(0.0, "They are scaled by alpha / rank (1).", panel=PANEL)
    lora_targets: tuple[str, ...] = option(
        (), "Of qkv,attention_output,gate_up,down (all).", panel=PANEL, parse=words_of
    )
    trained: tuple[str, ...] = option(
        (), "Train parameters of these names: head.*,*norm*.", panel=PANEL, parse=words_of
    )

    @property
    def is_asked(self) -> bool:
        """Is it anything else than the whole model?"""
        return self != TrainedPart()

    def refuse(self, beside: str) -> None:
        """Raises SpecError where it is asked for beside something that knows its own model."""
        if self.is_asked:
            raise SpecError(f"a part to train is asked for beside {beside}", allowed="one of them")

    def of_model(self, model: str | os.PathLike[str] | ModelSpec) -> ModelSpec:
        """The model of which this part trains.

        Raises SpecError where it cannot be, or where the model says another part itself; UnknownNameError as `load_model`.
        """
        made = load_model(model)
        if not self.is_asked:
            return made
        if not self.lora_rank and (self.lora_targets or self.lora_alpha):
            raise SpecError(
                f"{made.name}: targets or alpha of low-rank additions without their rank",
                allowed="a rank from 1 beside them (--lora-rank 8)",
            )
        targets = self.lora_targets or (lora_choices(made) if self.lora_rank else ())
        found = replace(
            made.base, lora_rank=self.lora_rank, lora_alpha=self.lora_alpha, lora_targets=targets, trained=self.trained
        )  # fmt: skip
        if made.is_adapted and found != made:
            raise SpecError(
                f"{made.name} says which part trains (rank {made.lora_rank}, {made.lora_targets!r}, {made.trained!r}), and "
                f"another was asked for",
                allowed="one of them",
            )
        return found

    def of_plan(self, plan: str | os.PathLike[str] | Plan) -> Plan:
        """The plan for that model. Raises SpecError where the file is no plan's, and as `of_model`."""
        made = plan if isinstance(plan, Plan) else load(plan)
        if not isinstance(made, Plan):
            raise SpecError(f"{plan} is no plan", allowed="the file of one (.toml): it says its model")
        return replace(made, model=self.of_model(made.model))
