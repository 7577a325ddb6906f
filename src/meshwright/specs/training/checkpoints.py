"""Where a training is kept, and whether it goes on from there."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.training.source import PathLike

KEPT = "What is kept"


@dataclass(frozen=True)
class Checkpoints:
    """Where a training is kept, and whether it goes on from there. Raises SpecError on numbers that cannot be.

    Args:
        folder: all ranks see it; on the command line "runs/best" is the folder runs, begun with the best there.
        every: steps between two; 0: only at the end, also where Ctrl-C or the clock is the end.
        keep: how many of the last are kept.
        resumes: go on from the newest one, whatever layout wrote it; where there is none, begin.
        accepts_other_data: go on with other text, or another tokenizer; otherwise they are refused.
        begins_with: "latest", or "best" for the one with the least held-out loss.
    """

    folder: PathLike = option(
        MISSING, "A folder: save at the end, Ctrl-C too.", "--checkpoints", panel=KEPT, metavar="FOLDER"
    )
    every: int = option(0, "Steps between two.", "--checkpoint-every", panel=KEPT)
    keep: int = option(3, "How many of the last (and the best).", panel=KEPT)
    resumes: bool = option(False, "Go on from the newest, by any plan.", "--resume", panel=KEPT)
    accepts_other_data: bool = option(False, "Also with other text than it had.", "--other-data", panel=KEPT)
    begins_with: str = "latest"

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1:
            raise SpecError(
                f"a checkpoint every {self.every} steps, of which {self.keep} are kept",
                allowed="every 0 steps (only the last) or more, at least 1 kept",
            )
