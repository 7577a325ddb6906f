"""What a job does about checkpoints: where they are kept, and which one it goes on from. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from meshwright.specs.training.checkpoints import Checkpoints


@dataclass(frozen=True)
class CheckpointConfig:
    """The field ``checkpoints`` of `Job`. All ranks must see the folder; it is also saved to after the last iteration.

    Args:
        kept: the folder, how often, and how many.
        resume_from: the folder of one checkpoint ("runs/step-40") that is loaded before the first iteration, whatever
            layout wrote it; empty: none. `TrainingConfig.first_step` must be its step.
        files: texts that are kept beside the tensors, by file name, such as {"plan.toml": ...}.
    """

    kept: Checkpoints
    resume_from: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def is_due(self, step: int) -> bool:
        """Is a checkpoint made when `step` steps are done?"""
        return self.kept.every > 0 and step % self.kept.every == 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file; paths are absolute, since whoever reads it may work elsewhere."""
        told = asdict(self)
        told["kept"]["folder"] = os.path.abspath(self.kept.folder)
        return told | {"resume_from": self.resume_from and os.path.abspath(self.resume_from)}
