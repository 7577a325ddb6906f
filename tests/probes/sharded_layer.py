"""Probe 2: layers whose parameters are sharded over dp; each is gathered into one of a few slots before its compute."""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Pattern, ValueBytes, ValueKind, Work
from meshwright.ir.vocabulary import Name, Vocabulary

LAYER_BYTES = 1000.0


def of(kind: str, part: str = "zero") -> Pattern:
    return Pattern(kind, index="none", part=part)


GATHER = Effect(Kind.COLLECTIVE, "gather_layer", (of("layer_shard", "row"),), (of("layer_whole", "row"),))
APPLY = Effect(Kind.COMPUTE, "apply_layer", (of("layer_whole", "row"), of("hidden")), (of("hidden"),))
VOCABULARY = Vocabulary.of(
    ValueKind("layer_shard", index="none", microbatch=False, carried=True),
    ValueKind("layer_whole", index="none", microbatch=False),
    ValueKind("hidden", index="none", microbatch=False, carried=True),
    *(Name(GATHER, "device"), Name(APPLY, "device")),
    owner="tests.probes.sharded_layer_handlers",
)


def sharded_layer(slots: int = 2, num_layers: int = 6, size: int = 2) -> Program:
    """``num_layers`` applied one behind the other; part: the layer. A gather stands `slots` layers ahead of its use."""
    builder = ProgramBuilder(
        [Axis("dp", size)],
        vocabulary=VOCABULARY,
        value_kinds=[ValueKind("layer_whole", index="none", microbatch=False, ring=slots)],
        value_bytes=(ValueBytes("layer_whole", (LAYER_BYTES,)),),
        duties=(
            Duty("apply_layer", "device", num_layers, order=1),
            Duty("gather_layer", "device", num_layers),
        ),
        paths=((),),
    )

    def gather(device: int, layer: int) -> None:
        builder.add(
            device, GATHER, part=layer, stream="gather", exchange=Exchange(("dp",)), work=Work("gather_layer")
        )

    for device in range(size):
        for layer in range(min(slots, num_layers)):
            gather(device, layer)
        for layer in range(num_layers):
            builder.add(device, APPLY, part=layer, work=Work("apply_layer"))
            if layer + slots < num_layers:
                gather(device, layer + slots)
    return builder.build()
