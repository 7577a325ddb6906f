"""What a device is told to do: programs, the one start rule, verification, text, traces and their metrics.

This is law: verifier, simulator and executor cite it. The *reference interpreter* (`ir.reference`) implements
it in obvious Python; every fast path is tested against it on random programs; a second judge, independent of
both, is the symbolic content of the outputs (`ir.symbolic`: which gradients, of which samples, ended in which
parameter).

**A program is the body of a loop**: one training step, one denoising step, one round. `simulate(program,
iterations=n)`, `train(..., iterations=n)`. Nothing joins the devices between iterations except what the
program says; the exchange of iteration t joins occurrences t of its ends, and what crosses an iteration does
so by the age of a read.

**The list of a device is a legal order**: what an instruction depends on within its device stands before it
in the list. So every rule below is a static edge that points backwards, times are max-plus, a deadlock can
only come from exchanges, rings behind them and streams, and one iteration without a cycle proves all.

**Columns are the truth**, an `Instruction` is a read-only row view (about 20 bytes a row). Passes work on one
list per *kind of device* (axes), never on millions of Python objects.

    effect: interned row (kind, name, reads, writes): patterns over the row's own stage, hop, microbatch and
        part, with age. A name has a default effect; a pass that changes what a row touches gives it another
        row of this table
    kind: closed set: COMPUTE SEND RECEIVE COLLECTIVE LOAD STORE COPY CALL (a registered host function with
        declared effects, on stream `host`)
    name: open set: F I W B R(ecompute) S T gate step perturb ..., `SEND_F`, `RECV_B`, `UNSHARD`; a name
        registers its default effect, its work and, if it executes, its handler, in the file that invents it
    stage, hop, microbatch, part: which parameters; position on the microbatch's path; which microbatch (a
        table: tokens, weight, path); layer, bucket, ring step, nano-batch or patch
    stream: `compute`, `send/PEER`, `receive/PEER`, `reduce`, `gather`, `load`, `store`, `host`. A stream is
        an order, not a wire: what shares a NIC is the links' matter. The receives from a peer stand in the
        order of that peer's sends, at least one compute before their use
    work: index into interned `Work(name, tokens, shape, dtype, flops, bytes)`: cost is asked once per
        distinct work and device class
    exchange: class `(ends or group, shift along an axis, size, algorithm, dtype)`; ends pair by the value
        they move. SEND and its RECEIVE are one exchange
    batch: a run of neighbouring exchanges on one stream, posted together (a ring step, fused pairs)
    after: earlier instructions of the same device: the only dependency that is ever written, by a pass that
        says why (prefetch distance, posting late)

**Values.** Data dependencies are derived, never written. A value is `(kind, index, microbatch, part)` on one
device; every device that has it holds its own copy; only exchanges cross devices. A table of value kinds says
for each: is the index a hop or a parameter group, has it a microbatch, is it *carried* into the next
iteration, does it *accumulate*, its memory tier. Parameters belong to groups (stages that use it, bytes, axes
of replication); tied weights are one group used by two stages. **A write makes a new version; a read takes
the last version written before it in its device's list**; of a carried kind with none before it, the last of
the previous iteration; any other such read is an error. A read of age n >= 1 takes the last version of n
iterations ago (patch parallelism, delayed outer steps, historical embeddings, delayed updates are this and
nothing else); ages are written, never inferred. Reading and writing the same value is in place; accumulation
is in list order, so sums repeat bitwise. Several contributors from other devices have one `part` each (skip
connections, encoder outputs). `paths: microbatch -> ((stage, device), ...)`; an ordinary pipeline has one.
`ir.dependencies(program)` compiles all this once into flat tables; nothing else knows any op.

**Start rule.** An instruction is *issued* when the host reaches it; *posted* when (1) it is first in its
stream, (2) the versions it reads are complete, (3) its ring slot is free, (4) its `after` are complete; it
*starts* at once, an exchange when all its ends are posted (a batch is posted when 2 to 4 hold for all
members, each member then starts when its own ends are posted, readers wait for their member only, the stream
is free when the last one ends); it holds stream and links for `seconds`; what it writes is complete
`latency_s` later. `DeviceSpec.host` is `asynchronous` (CUDA: all is issued at once) or `in_order` (CPU): the
host walks the list, waits at each instruction until 2 to 4 hold, issues it, runs COMPUTE itself, and never
waits for a stream nor for what it has just issued. Exchanges that share streams stand in the same order at
all ends.

**Rings.** By default a version has memory of its own and (3) always holds. A value kind may be mapped to a
*ring* of n slots: the k-th write into it, counted in list order over all iterations, waits until the readers
of write k-n have ended; a reader behind the write that displaces its version is an error. Double buffering,
prefetch windows and arenas are this; in place is a ring of one. Nobody writes a buffer id.

**Memory.** A version lives from the moment its writer is posted to the end of its last reader (a longer life
is one more reader). `verify` bounds the peak per tier over all legal orders with the clock of each device's
computes (which have certainly ended when a row is posted, which certainly start after it ended), carried
across exchanges; `simulate` reports the peak on its timeline; *measured* peaks come from the allocator (on
CPU: live storages), never from the ledger.

**Sizes** known only at run time (routed tokens) are rows `(name, expected, max, per_peer)` whose numbers are
values: the simulator binds them from a trace or distribution, the executor from a counts exchange that the
sized instruction reads, `verify` uses max. A program has no branches: which program comes next is a
`Controller`'s decision, `next(step, observations) -> Program` (trivial by default); groups outlive programs;
an aged read is looked up in the program that ran n iterations ago; moving from one placement to another is
itself a program.

**Axes.** `Program.axes = (pp 64, dp 6, tp 8)`; lists are stored only over the axes on which devices differ;
exchanges are relative to the collapsed axes, cyclic there. `expand(axis)` materialises. The quotient is
simulated only where the placement on the cluster is invariant too, link demands multiplied; `simulate(p) ==
simulate(expand(p))` is a property test.

**Levels.** stage (tensor-parallel collectives priced inside a compute's work), layer, operator;
`Refine(level)` expands. A refined stage that touches only its own devices is simulated once and becomes the
stage's cost.

**Gradients.** Per parameter group and use, the weights (tokens, visits) of the contributions sum to one, and
uses add; the group of a reduction covers exactly the axes on which the parameter is replicated and the data
differ; every compute, reduction and step `(name, hop, microbatch, part)` that is a duty occurs once, moves may
repeat. A split backward is structural (input gradient now, a counted queue of (input, output gradient) for W
later), never surgery on the autograd graph: that is where public runtimes lose gradients silently. Randomness
is keyed by (seed, step, sample, layer), never by rank.

**Cost**: `CostModel.cost(work, device) -> Cost(seconds, latency_s, shares of compute, memory and link,
joules)`; `CommunicationModel.flows(exchange) -> flows` over directed links with identity (`Topology.path`);
`Routing` chooses among paths. Without contention a worklist needs no clock; a certificate then checks that no
link or device was over-subscribed, and only where it fails does the event engine run. The trace says which
engine made it.

**Trace**: `posted_s, start_s, end_s` (result complete) for every instruction, as columns in program order,
and the memory curve per tier. *Span*: makespan of one iteration. *Period*: time per iteration in the long
run. *Device time*: the longest any device is between the start of its first COMPUTE and the end of its last;
zero-bubble claims are about this one. *Bubble*: idle share of the compute streams, 1 - busy / (devices x
span); `idle_s` is the seconds behind it.

**Completeness**: a kind has a replay rule, a text form, an executor and a test; a name has an effect, work
and, if executed, a handler; tests run over all of both. `executor` contains no loop over microbatches except
the interpreter's; on CPU that is one in-order host thread.

**Text**: one line a list, torch's spelling (`torch.distributed.pipelining`, so its schedule CSV loads here
and ours runs there), then only what is not the default:

    meshwright-program 1   axes pp=2   microbatches 2
    0: 0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0B0 0B1
    1: 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1
"""

from meshwright.ir.judge.metrics import (
    bubble,
    busy_s,
    device_time_s,
    idle_s,
    peak_alive,
    peak_bytes,
    period_s,
    seconds_by_name,
    span_s,
)
from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import Verification, verify
from meshwright.ir.program import Axis, Columns, Instruction, Program, ProgramBuilder, Tables
from meshwright.ir.table import (
    Duty,
    Effect,
    Exchange,
    Hop,
    Kind,
    Microbatch,
    ParameterGroup,
    Pattern,
    Size,
    ValueBytes,
    ValueKind,
    Work,
)
from meshwright.ir.text import from_text, from_torch_csv, to_text, to_torch_csv
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.timing.dependency_table import Dependencies
from meshwright.ir.timing.reference import interpret
from meshwright.ir.timing.replay import Wiring, replay, wire
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.ir.vocabulary import register_name, register_value_kind

__all__ = [
    "Axis",
    "Columns",
    "Dependencies",
    "Duty",
    "Effect",
    "Exchange",
    "Hop",
    "Instruction",
    "Kind",
    "MemoryCurve",
    "Microbatch",
    "ParameterGroup",
    "Pattern",
    "Program",
    "ProgramBuilder",
    "Size",
    "Tables",
    "Trace",
    "ValueBytes",
    "ValueKind",
    "Verification",
    "Wiring",
    "Work",
    "bubble",
    "busy_s",
    "dependencies",
    "device_time_s",
    "from_text",
    "from_torch_csv",
    "idle_s",
    "interpret",
    "outputs",
    "peak_alive",
    "peak_bytes",
    "period_s",
    "register_name",
    "register_value_kind",
    "replay",
    "seconds_by_name",
    "span_s",
    "to_text",
    "to_torch_csv",
    "verify",
    "wire",
]
