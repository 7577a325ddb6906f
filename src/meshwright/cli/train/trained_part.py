"""The options that ask for a part of a model to train: low-rank additions, patterns of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshwright.api.exchange.adapting import TrainedPart

PANEL = "Which part trains"
LoraRank = Annotated[
    int | None,
    typer.Option(
        "--lora-rank", help="Train low-rank additions of this rank only.", min=1, rich_help_panel=PANEL
    ),
]
LoraAlpha = Annotated[
    float | None,
    typer.Option("--lora-alpha", help="They are scaled by alpha / rank (1).", rich_help_panel=PANEL),
]
LoraTargets = Annotated[
    str | None,
    typer.Option("--lora-targets", help="Of qkv,attention_output,gate_up,down (all).", rich_help_panel=PANEL),
]
Trained = Annotated[
    str | None,
    typer.Option("--trained", help="Train parameters of these names: head.*,*norm*.", rich_help_panel=PANEL),
]


def trained_part(
    rank: int | None, alpha: float | None, targets: str | None, trained: str | None
) -> TrainedPart:
    """What the four options ask for; what is not given is nothing."""
    from meshwright.api.exchange.adapting import TrainedPart

    return TrainedPart(rank or 0, alpha or 0.0, _words(targets), _words(trained))


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
