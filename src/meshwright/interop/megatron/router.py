"""How Megatron-LM says what a training does with routers, both ways: a plan's corrections, and what a recipe of ours has.

Its options, from `megatron/training/arguments.py`, release of 2025. Losses and capacities are a training's here, no plan's:
what a script says of them is noted with the words of `meshwright train`.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.interop.exported import Export
from meshwright.interop.option_set import OptionSet
from meshwright.specs.plan.plan import PassOption

CORRECTION = "correct_routers"  # our pass; Megatron's experts' bias
IS_CORRECTED, RATE = "moe-router-enable-expert-bias", "moe-router-bias-update-rate"
DEFAULT_RATE = 1e-3  # of both programs
# It corrects scores of this function only.
SCORES = ("--moe-router-score-function", "sigmoid")
# What a recipe says of it, as options of `train`.
OF_RECIPE: Mapping[str, str] = {"moe-aux-loss-coeff": "--balance-loss", "moe-z-loss-coeff": "--z-loss"}
CAPACITY, PADDED, POLICY = (
    "moe-expert-capacity-factor",
    "moe-pad-expert-input-to-capacity",
    "moe-token-drop-policy",
)
POLICIES: Mapping[str, str] = {"probs": "probability", "position": "position"}
LEFT_OPEN = (
    "OWN_ARGS: of a recipe --balance-loss is --moe-aux-loss-coeff, --z-loss --moe-z-loss-coeff; --capacity-factor, which "
    "counts by sequences, --moe-expert-capacity-factor with --moe-token-drop-policy"
)


def read_router(options: OptionSet) -> None:
    """Corrections as a pass of the plan, where its routers have some; what belongs to a recipe is listed with its option.

    Raises PlanError for a rate that is no number above zero.
    """
    if IS_CORRECTED in options and options.draft.required_model().has_router_corrections:
        options.flag(IS_CORRECTED, f"pass {CORRECTION}")
        rate = options.number(RATE, "correct_routers(rate={value})", DEFAULT_RATE)
        options.draft.choices["passes"] = (PassOption(CORRECTION, {"rate": rate}),)
    for name, ours in OF_RECIPE.items():
        options.leave(name, f"of the training's recipe: meshwright train {ours} {{value}}")
    if POLICY in options:
        said = " ".join(options.values[POLICY])
        kept = POLICIES.get(said)
        options.leave(
            POLICY, f"of the training's recipe: meshwright train --drop-by {kept}" if kept else "not known"
        )
    if CAPACITY in options:
        options.reject(
            CAPACITY,
            "experts take every token that is routed to them, evenly; of each sequence "
            "`meshwright train --capacity-factor` drops more",
        )
    if PADDED in options:
        options.reject(PADDED, "rows of experts are not padded: exchanges have the sizes of the run")


def router_options(export: Export) -> list[tuple[str, str]]:
    """Corrections of the plan's routers; none where it has no such pass."""
    given = export.plan.options_of(CORRECTION)
    if given is None:
        return []
    export.need(
        export.plan.model.has_router_corrections,
        f"pass {CORRECTION}",
        f"routers of {export.plan.model.name} have none",
    )
    return [SCORES, (f"--{IS_CORRECTED}", ""), (f"--{RATE}", f"{float(given.get('rate', DEFAULT_RATE)):g}")]
