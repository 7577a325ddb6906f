"""`validate_training`, `validate_unseen`: predictions beside tables of measured training runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.evidence.tables.validate_training import Predictor, Validation
    from meshwright.evidence.unseen.validate_unseen import Unseen


def validate_training(
    *tables: str | Path,
    progress: Callable[[str, float], None] | None = None,
    predictor: Predictor | None = None,
) -> Validation:
    """Predict every row of these CSV files (calibration schema) and score the predictions.

    Args:
        progress: told the id of a row and the share of rows that is done.
        predictor: called as ``predictor(rows, progress=progress)`` in place of the simulator, to score another model.

    Returns rows, predictions (seconds, bytes) and the summary. Raises SpecError for a table that cannot be read.
    """
    from meshwright.evidence.tables.validate_training import validate_training as validate

    return validate(tables, progress=progress, predictor=predictor)


def validate_unseen(*tables: str | Path, progress: Callable[[str, float], None] | None = None) -> Unseen:
    """Predict every core row of these CSV files, or folders of them, by constants that were fitted without its source.

    Args:
        progress: told the id of a row and the share of rows that is done.

    Returns the scores by source and kind, what few rows of one's own are worth, rows of many devices by those of few, the
    order of layouts, and what of that should hold. Raises SpecError for a table that cannot be read.
    """
    from meshwright.evidence.unseen.validate_unseen import validate_unseen as validate

    return validate(tables, progress=progress)
