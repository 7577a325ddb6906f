"""What the fits of collectives have in common: a network's curve, warnings, a spread, and a part of the package's file."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Literal

from meshwright.costs.collective.curve import NetworkCurve
from meshwright.costs.collective.profile import PROFILE_FILE, ChipCollectives, NetworkCollectives
from meshwright.costs.cost import rounded

from .collective_constant import NETWORK_CONSTANTS, Fit

logger = logging.getLogger(__name__)

DIGITS = 5  # of what is written
PERCENTILE = 0.8


def network_curve(values: Mapping[str, float]) -> NetworkCurve:
    """A curve from named constants, which are in the order of its fields."""
    return NetworkCurve(*(values[constant.name] for constant in NETWORK_CONSTANTS))


def spread_of(errors: Iterable[float]) -> float:
    """Of the sizes of errors: the smallest that PERCENTILE of them do not exceed."""
    ordered = sorted(map(abs, errors))
    return ordered[math.ceil(PERCENTILE * len(ordered)) - 1]


def warn_of_edges(what: str, fit: Fit) -> None:
    """Says which constants ended at the edge of what is physical."""
    if fit.at_edge:
        logger.warning("%s: at the edge of the range: %s", what, ", ".join(fit.at_edge))


def write_part(
    kind: Literal["chips", "networks"], name: str, found: ChipCollectives | NetworkCollectives, source: str
) -> None:
    """Put one chip or network, with its source, into the package's profile."""
    path = Path(str(resources.files("meshwright.costs"))) / "profiles" / PROFILE_FILE
    document = json.loads(path.read_text(encoding="utf-8"))
    document[kind][name] = rounded(asdict(found), DIGITS)
    document["sources"] = [*dict.fromkeys([*document["sources"], source])]
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
