"""Sharding: among how many devices a copy of a parameter group's values, gradients and optimizer state is divided.

ZeRO's three steps (Rajbhandari et al. 2020, arXiv 1910.02054) divide the state, then the gradients, then the values among
all devices that hold the same parameters. A topology may ask for less: values among the devices of a package, gradients
among those of a node, state among all (ZeRO++, arXiv 2306.10209; low-bandwidth partitioning, arXiv 2501.04266).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.specs.error import PlanError

EVERYBODY = 0  # all devices that share one copy of the state: `Plan.sharing_degree`


@dataclass(frozen=True)
class Sharding:
    """Devices of dp x cp, counted from the innermost, among which one copy of each is divided: 1: nobody, 0: everybody.

    The devices that share values are among those that share gradients, and these among those that share state.
    """

    values: int = 1
    gradients: int = 1
    state: int = 1
    summary: str = field(default="", compare=False)

    @property
    def divides_values(self) -> bool:
        """Is what computes read gathered for them?"""
        return self.values != 1

    @property
    def divides_gradients(self) -> bool:
        """Are gradients scattered behind every microbatch?"""
        return self.gradients != 1

    @property
    def divides_state(self) -> bool:
        """Does a device step its part only?"""
        return self.state != 1

    @property
    def steps_values(self) -> bool:
        """Is the part of the values that a device keeps what it steps? Then a step is followed by no gather."""
        return self.divides_values and self.values == self.state

    @property
    def zero(self) -> str:
        """The step of ZeRO that divides the same, among everybody."""
        if self.divides_values:
            return "zero3"
        return "zero2" if self.divides_gradients else "zero1" if self.divides_state else "none"

    def degrees(self, everybody: int) -> tuple[int, int, int]:
        """Devices that share values, gradients and state, where so many hold the same parameters.

        Raises PlanError where they do not nest.
        """
        found = tuple(
            everybody if one == EVERYBODY else one for one in (self.values, self.gradients, self.state)
        )
        values, gradients, state = found
        if everybody % state or state % gradients or gradients % values:
            raise PlanError(
                f"values are shared by {values}, gradients by {gradients} and state by {state} of {everybody} devices",
                allowed="numbers that divide each other in this order",
            )
        return values, gradients, state


ZERO: dict[str, Sharding] = {
    "none": Sharding(summary="every device has all"),
    "zero1": Sharding(state=EVERYBODY, summary="the optimizer's state is divided"),
    "zero2": Sharding(gradients=EVERYBODY, state=EVERYBODY, summary="state and gradients are divided"),
    "zero3": Sharding(EVERYBODY, EVERYBODY, EVERYBODY, summary="state, gradients and values are divided"),
}
