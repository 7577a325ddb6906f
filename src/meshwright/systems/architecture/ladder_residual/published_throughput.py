"""Published tokens per second of a 70B model of 80 layers, with and without waiting for all-reduces, to compare with.

Source: mayank31398/ladder-residual-inference, tools/plot-70b.py and scripts/throughput-70B.sh: prompts of 1,024 tokens, 512
new tokens, batches of 1 to 64, tensor parallelism of 2 to 8. "bound" leaves all-reduces out; its numbers are with NVLink.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.error import UnknownNameError

NUM_BLOCKS = 80
TENSOR_DEGREES = (2, 4, 8)
LINKS = ("NVLink", "no NVLink")
# batch -> tokens per second by degree; None where the model did not fit
STANDARD = {
    "NVLink": {
        1: (35.42, 59.41, 77.39),
        4: (120.58, 185.01, 258.56),
        16: (None, 585.23, 843.15),
        64: (None, 1249.67, 1940.99),
    },
    "no NVLink": {
        1: (33.77, 53.35, 51.66),
        4: (106.6, 158.77, 173.62),
        16: (None, 518.41, 546.68),
        64: (None, 1199.62, 1454.42),
    },
}
LADDER = {
    "NVLink": {
        1: (36.69, 67.51, 101.22),
        4: (126.09, 204.3, 331.45),
        16: (None, 635.98, 1003.52),
        64: (None, 1358.65, 2242.1),
    },
    "no NVLink": {
        1: (36.94, 66.6, 82.59),
        4: (125.55, 204.24, 271.82),
        16: (None, 598.71, 738.56),
        64: (None, 1313.44, 1864.05),
    },
}
BOUND = {
    1: (38.24, 69.04, 110.59),
    4: (130.77, 213.73, 355.8),
    16: (None, 665.07, 1109.65),
    64: (None, 1433.53, 2474.49),
}


@dataclass(frozen=True)
class Point:
    """One measured setting; rates are tokens per second of the whole batch."""

    tp: int
    batch: int
    links: str
    standard_per_s: float
    ladder_per_s: float
    bound_per_s: float

    @property
    def compute_s(self) -> float:
        """Seconds of a token of every sequence without all-reduces."""
        return self.batch / self.bound_per_s

    @property
    def exposed_s(self) -> float:
        """Seconds that the standard model waits for all-reduces."""
        return self.batch / self.standard_per_s - self.compute_s


def points() -> tuple[Point, ...]:
    """All settings that were measured."""
    found = []
    for links in LINKS:
        for batch, standard in STANDARD[links].items():
            for place, tp in enumerate(TENSOR_DEGREES):
                rates = (standard[place], LADDER[links][batch][place], BOUND[batch][place])
                if None not in rates:
                    found.append(Point(tp, batch, links, *(float(rate or 0) for rate in rates)))
    return tuple(found)


def point(tp: int, batch: int, links: str) -> Point:
    """One setting. Raises UnknownNameError where it was not measured."""
    for one in points():
        if (one.tp, one.batch, one.links) == (tp, batch, links):
            return one
    known = [f"tp={one.tp}, batch={one.batch}, {one.links}" for one in points()]
    raise UnknownNameError("measured setting", f"tp={tp}, batch={batch}, {links}", known)
