"""Which device a model is served on, where nobody says."""

from __future__ import annotations

import torch


def served_device(asked: str) -> str:
    """A device by its name; "auto": a GPU where there is one."""
    if asked != "auto":
        return asked
    return "cuda" if torch.cuda.is_available() else "cpu"


def num_gpus() -> int:
    """That this process sees."""
    return torch.cuda.device_count()
