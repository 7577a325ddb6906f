"""Software classes: what a stack's kernels touch and how long its host takes per operator; a handful, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.specs.error import UnknownNameError
from meshwright.specs.operator import Operator


@dataclass(frozen=True)
class SoftwareClass:
    """One kind of training software.

    Attributes:
        name: what a plan's `software` says.
        meaning: for people.
        traffic: operator variant or kind -> share of its unfused traffic that the kernels of this class move.
        host_share: host time per operator, of that of a framework that launches each operation by itself.
        slowdown: of products against the measured kernels (another library, other layouts).
    """

    name: str
    meaning: str
    traffic: Mapping[str, float] = field(default_factory=dict, hash=False)
    host_share: float = 1.0
    slowdown: float = 1.0

    def share(self, operator: Operator) -> float:
        """Of the unfused bytes of an operator, the part that is moved."""
        return self.traffic.get(operator.variant, self.traffic.get(operator.kind, 1.0))


# Shares of unfused traffic. Fused activation: a gated one reads gate and up and writes the product (3 of 5 touches),
# backward reads three and writes two (5 of 9). A residual added by the norm behind it is read once less (2 of 3).
# The loss of a fused kernel works on 16-bit logits in place; in float32 and unfused each touch is of twice the bytes.
_FUSED = {"activation": 0.6, "activation_backward": 0.56, "elementwise": 0.67, "loss": 1.0, "loss_backward": 1.0}
_UNFUSED = {"loss": 3.0, "loss_backward": 2.0}

CLASSES: Mapping[str, SoftwareClass] = {
    each.name: each
    for each in (
        SoftwareClass(
            "fused", "hand-fused kernels for norms, activations and the loss (Megatron-LM, Transformer Engine)",
            {**_FUSED, "loss": 2.0, "loss_backward": 1.0}, host_share=0.7,
        ),
        SoftwareClass(
            "eager", "every operation by itself, as PyTorch launches it; the loss in float32",
            {**_UNFUSED, "elementwise": 1.0},
        ),
        SoftwareClass(
            "compiled", "the compiler fuses what lies between products (torch.compile)",
            {**_FUSED, "loss": 1.5, "loss_backward": 1.0}, host_share=0.5,
        ),
    )
}  # fmt: skip
DEFAULT_CLASS = "fused"


def software_class(name: str) -> SoftwareClass:
    """The class of this name; the default for an empty one. Raises UnknownNameError."""
    if name and name not in CLASSES:
        raise UnknownNameError("software class", name, sorted(CLASSES))
    return CLASSES[name or DEFAULT_CLASS]
