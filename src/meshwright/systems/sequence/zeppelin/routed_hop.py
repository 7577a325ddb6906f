"""A message from one node to the next over all NICs of both, as a program: handed out within the node, sent, gathered.

Device 0 of a node has what device 0 of the next one needs; devices are numbered node by node. Every piece of the message goes
over the NIC of one device: to this device first, then to its counterpart in the other node, then to who needs it. Pieces
follow each other, so that all three ways are busy at once.
"""

from __future__ import annotations

from meshwright.costs.roofline import Roofline
from meshwright.ir.judge import metrics
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Hop, Kind, Microbatch, Pattern, ValueBytes, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.lowering.place import place
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError

AXIS = "dp"
PIECE = ValueKind("message_piece", index="none", microbatch=False)
_PIECE = Pattern(PIECE.name, index="none", part="row")
MAKE = Effect(Kind.COMPUTE, "MAKE_PIECE", (), (_PIECE,))
SEND = Effect(Kind.SEND, "SEND_PIECE", (_PIECE,))
RECEIVE = Effect(Kind.RECEIVE, "RECV_PIECE", (), (_PIECE,))
USE = Effect(Kind.COMPUTE, "USE_PIECE", (_PIECE,))
VOCABULARY = Vocabulary.of(
    PIECE, Name(MAKE, "path"), Name(USE, "path"), Name(SEND), Name(RECEIVE), owner="zeppelin"
)


def routed_s(num_bytes: float, num_nics: int, nic_rate: float, node_rate: float, rounds: int = 1) -> float:
    """Seconds of a routed message, m NICs: V / (m NIC) + 2 (m - 1) / m V / node where one way follows the other.

    In n rounds only what is not beside the slowest way counts in full: the rest is there once, for the first and last round.
    """
    nic_s = num_bytes / (num_nics * nic_rate)
    node_s = (num_nics - 1) / num_nics * num_bytes / node_rate
    slowest_s = max(nic_s, node_s)
    return (nic_s + 2 * node_s - slowest_s) / rounds + slowest_s


def routed_hop(num_bytes: float, node: int, num_nics: int, rounds: int = 1) -> Program:
    """The message between two nodes of so many devices over so many NICs of each, in rounds of a piece for every NIC; over
    one NIC it goes as it is.

    Raises PlanError where a node has fewer devices than NICs.
    """
    if not 1 <= num_nics <= node:
        raise PlanError(
            f"{num_nics} NICs of a node of {node} devices", allowed=f"1 to {node}: one for a device"
        )
    num_pieces = num_nics * rounds
    builder = ProgramBuilder(
        (Axis(AXIS, 2 * node),),
        microbatches=(Microbatch(1, 1.0),),
        paths=((Hop(0, 0), Hop(1, node)),),
        duties=(
            Duty(MAKE.name, parts=num_pieces, stages=(0,)),
            Duty(USE.name, parts=num_pieces, stages=(1,)),
        ),
        vocabulary=VOCABULARY,
        value_bytes=(ValueBytes(PIECE.name, (num_bytes / num_pieces,)),),
    )
    for piece in range(num_pieces):
        builder.add(0, MAKE, part=piece)
    for piece in range(num_pieces):
        nic = piece % num_nics
        for source, target in ((0, nic), (nic, node + nic), (node + nic, node)):
            if source != target:
                _move(builder, source, target, piece)
    for piece in range(num_pieces):
        builder.add(node, USE, stage=1, part=piece)
    return builder.build()


def hop_seconds(cluster: ClusterSpec, num_bytes: float, num_nics: int, rounds: int = 1) -> float:
    """Simulated seconds of the message from the first node of a cluster to the second."""
    costs = Roofline(cluster)
    program = routed_hop(num_bytes, cluster.levels[0].num_devices, num_nics, rounds)
    return metrics.span_s(simulate_program(program, costs, costs, placement=place(program, cluster)))


def _move(builder: ProgramBuilder, source: int, target: int, piece: int) -> None:
    """A piece from one device to another."""
    exchange = Exchange((AXIS,), ends=(source, target))
    builder.add(source, SEND, part=piece, stream=f"send/{target}", exchange=exchange)
    builder.add(target, RECEIVE, part=piece, stream=f"receive/{source}", exchange=exchange)
