"""What a device is told to do: programs, the one start rule, verification, text, traces and their metrics.

The law is one text: docs/design.md, "The program, exactly". Verifier, simulator and executor cite it; `ir.timing.reference`
implements it in obvious Python, and every fast path is tested against that.
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
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import Wiring, wire
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.ir.vocabulary import Name, Vocabulary

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
    "Name",
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
    "Vocabulary",
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
    "replay",
    "seconds_by_name",
    "span_s",
    "to_text",
    "to_torch_csv",
    "verify",
    "wire",
]
