"""Rows predicted by constants that were fitted without their source, or without any row of many devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from meshwright.costs.step.profile import MANY_DEVICES, MOST_FITTED_DEVICES, StepFit, packaged_step_profile
from meshwright.evidence.tables.score import Scored
from meshwright.evidence.tables.table import TrainingRow
from meshwright.evidence.tables.validate_training import Progress, predict_layout, predict_rows


def left_out(rows: Sequence[TrainingRow], progress: Progress | None = None) -> list[Scored]:
    """Every row by the packaged constants and widths that its source took no part in."""
    return _by_source(rows, packaged_step_profile().blind_to, progress)


def is_known(source: str) -> bool:
    """Did the packaged constants see rows of this source?"""
    return source in packaged_step_profile().left_out


def from_few_devices(rows: Sequence[TrainingRow], progress: Progress | None = None) -> list[Scored]:
    """Every row of sources with rows on both sides of MOST_FITTED_DEVICES, by constants that no row above it took part in."""
    fit = packaged_step_profile().without(MANY_DEVICES)
    sides: dict[str, set[bool]] = {}
    for row in rows:
        sides.setdefault(row.source, set()).add(has_many_devices(row))
    return _by_source([row for row in rows if len(sides[row.source]) > 1], lambda _: fit, progress)


def has_many_devices(row: TrainingRow) -> bool:
    """Did it run on more devices than the constants of `from_few_devices` know?"""
    return row.count("gpus") > MOST_FITTED_DEVICES


def _by_source(
    rows: Sequence[TrainingRow], fit_of: Callable[[str], StepFit], progress: Progress | None
) -> list[Scored]:
    found: list[Scored] = []
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        told = None if progress is None else partial(_share, progress, len(found), len(own), len(rows))
        predicted = predict_rows(own, progress=told, predict=partial(predict_layout, fit=fit_of(source)))
        found += zip(own, predicted, strict=True)
    return found


def _share(progress: Progress, done: int, own: int, everything: int, name: str, share: float) -> None:
    """Of all rows, where `share` of a source's `own` rows are done behind `done` others."""
    progress(name, (done + own * share) / everything)
