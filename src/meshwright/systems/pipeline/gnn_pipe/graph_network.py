"""Layers of a graph network as a plan sees them: what each takes and makes, which stage has it."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.error import SpecError


@dataclass(frozen=True)
class GraphNetwork:
    """Layers of a graph network: ``num_features`` numbers a node come in, ``num_classes`` go out, ``width`` are between."""

    num_layers: int
    width: int
    num_features: int
    num_classes: int

    def shape(self, layer: int) -> tuple[int, int]:
        """Numbers a node that a layer takes and makes."""
        last = layer == self.num_layers - 1
        return self.num_features if layer == 0 else self.width, self.num_classes if last else self.width

    def layers(self, stage: int, num_stages: int) -> range:
        """Layers of a stage, as even as can be. Raises SpecError where a stage would have none."""
        if not 1 <= num_stages <= self.num_layers:
            raise SpecError(
                f"{self.num_layers} layers on {num_stages} devices", allowed="a layer or more on each"
            )
        first, behind = (self.num_layers * s // num_stages for s in (stage, stage + 1))
        return range(first, behind)

    def num_embeddings(self, stage: int, num_stages: int) -> int:
        """Layers of a stage that read embeddings: all but the one that reads features."""
        return sum(layer > 0 for layer in self.layers(stage, num_stages))

    def num_parameters(self, layer: int) -> int:
        """Weights and biases of a layer."""
        taken, made = self.shape(layer)
        return taken * made + made
