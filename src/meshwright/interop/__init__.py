"""To and from what people run: configurations of Megatron-LM, torchtitan and DeepSpeed as plans, and training logs.

Imports ir and specs only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from meshwright.interop.deepspeed.config import import_deepspeed
from meshwright.interop.imported import Draft, Given, Imported, Option
from meshwright.interop.megatron.arguments import import_megatron
from meshwright.interop.torchtitan.config import import_torchtitan
from meshwright.interop.training_log import MeasuredRun, read_run
from meshwright.specs.error import PlanError, UnknownNameError

FORMATS: Mapping[str, Callable[[str, str, Given], Imported]] = {
    "megatron": import_megatron,
    "torchtitan": import_torchtitan,
    "deepspeed": import_deepspeed,
}

__all__ = ["FORMATS", "Draft", "Given", "Imported", "MeasuredRun", "Option", "import_plan", "read_run"]


def import_plan(path: str | Path, form: str, given: Given | None = None) -> Imported:
    """The plan of a file in another program's words.

    Args:
        path: the file.
        form: "megatron", "torchtitan" or "deepspeed".
        given: what the file does not say.

    Raises UnknownNameError for another format, PlanError for a file that cannot be read or lacks a fact.
    """
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise PlanError(f"{file} cannot be read: {reason}", allowed=f"a {form} configuration") from None
    return FORMATS[form](text, str(path), given or Given())
