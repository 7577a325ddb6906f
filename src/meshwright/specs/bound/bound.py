"""How much anybody may ask for: what is more is refused in one message, before anything of that size is made.

Files of strangers and slips of the finger name any number; each of these is far above what is trained, and what it allows
is worked on in seconds, within some hundred megabytes.
"""

from __future__ import annotations

from meshwright.specs.error import MeshwrightError, SpecError

MOST_DEVICES = 1 << 20  # of a cluster, and of each degree of parallelism
MOST_LAYERS = 100_000  # of a model
MOST_SIZE = 1 << 40  # of a model's dimension, and of what a table counts
MOST_TOKENS = 1 << 27  # of a sequence
MOST_SEQUENCES = (1 << 31) - 1  # of a step: microbatches are counted in 32 bits
MOST_STAGES = 32_767  # of a program: its column that says them has 16 bits
MOST_MICROBATCHES = 1_000_000  # of a program: a row of a table each
MOST_CELLS = 2_000_000  # stages x microbatches of one order: a Python object for every compute
MOST_DOTS = 1_000  # of a key in TOML: the time of Python's reader grows with their square
MOST_EXPANDED = 1 << 22  # characters that all variables of a shell script give
MOST_COMPUTED = 1 << 63  # of a number that a shell script computes: a shell's own arithmetic ends there
MOST_ROWS = 1 << 26  # of a program in a file that says equal lists once: 16,384 lists of 4,096 rows
MOST_ARRAY_BYTES = (
    1 << 28
)  # of all arrays of a small archive: a trace of a hundred thousand rows, a hundred iterations
MOST_PACKED = 16  # of a large one: its arrays' bytes to its own; measured numbers are packed into no less


def check_most(what: str, number: int, most: int, error: type[MeshwrightError] = SpecError) -> None:
    """Raise `error` where `number`, of which `what` says what is counted and where, is above `most`."""
    if number > most:
        shown = f"{number:,}" if number < MOST_COMPUTED else "more than 64 bits hold"
        raise error(f"{what}: {shown}", allowed=f"up to {most:,}", next="take fewer, or correct the number")
