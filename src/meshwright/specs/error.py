"""The errors a user can meet, one tree for the whole package.

    MeshwrightError
    ├── SpecError            a model, device, cluster or workload that cannot be
    ├── PlanError            a plan that contradicts itself, its model or its cluster, or a bad plan file
    ├── ProgramError         a program that breaks the law of DESIGN, "The program, exactly"
    │   ├── ScheduleError    an order of computes that is not legal
    │   │   └── CountError   a schedule was asked for counts that it does not take: the user's mistake
    │   └── DeadlockError    exchanges, rings or streams that wait for each other in a circle
    ├── OutOfMemoryError     a device's memory is too small (names the largest holders)
    ├── ExecutionError       a running job failed: a rank died, hung, or returned nonsense
    │   └── MissingDataError what it was to read is not on this machine: nothing ran
    ├── RequestRefused       a request that can never be served
    ├── QueueFull            a request that cannot be served now
    ├── Draining             a server that takes no more requests
    └── UnknownNameError     no model, device, schedule, ... of that name (lists near matches)

A message has three parts, in this order: what was given, what is allowed, what to do next.
`exit_code` is what the command line returns: 1 our failure, 2 the user's mistake, 3 the honest no.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar

BYTES_PER_GB = 1e9  # `units` raises errors of this module, so it cannot be asked to format

NUM_NEAR_MATCHES = 4  # more than four suggestions are no longer a suggestion
NEAR_MATCH_CUTOFF = 0.5  # similarity of difflib.SequenceMatcher; 0.6 misses "lama-3-8b"
NUM_KNOWN_SHOWN = 12  # names listed when none is near
LONGEST_LINE = 2000  # characters of a message; what was given may be a whole file in one word
NUM_ENDS_SHOWN = 200  # characters of a longer line on either side


class MeshwrightError(Exception):
    """Root of all errors that are the user's to read, never a traceback at the command line.

    Args:
        given: what was given and why it cannot be, a sentence or a block of text.
        allowed: what would be accepted.
        next: what to do now.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, given: str, *, allowed: str = "", next: str = "") -> None:
        super().__init__(user_message(given, allowed, next))
        self.given = given
        self.allowed = allowed
        self.next = next


class SpecError(MeshwrightError):
    """A model, device, link, cluster or workload that cannot be, or a file that does not describe one."""

    exit_code: ClassVar[int] = 2


class PlanError(MeshwrightError):
    """A plan that contradicts itself, its model or its cluster; or a plan file that cannot be read."""

    exit_code: ClassVar[int] = 2


class ProgramError(MeshwrightError):
    """A program that is not legal: `verify` refuses it."""

    exit_code: ClassVar[int] = 3


class ScheduleError(ProgramError):
    """An order of computes that is not legal; the message shows the grid with an arrow."""


class CountError(ScheduleError):
    """Counts of devices, microbatches or chunks that a schedule does not take, so that there is no order to judge."""

    exit_code: ClassVar[int] = 2


class DeadlockError(ProgramError):
    """Rows that wait for each other in a circle through exchanges, rings or streams."""


class OutOfMemoryError(MeshwrightError):
    """A device's memory is too small.

    Args:
        given: which device and tier, bytes needed and bytes there.
        holders: pairs (what, bytes); the largest are shown first.
        allowed, next: as for every error.
    """

    exit_code: ClassVar[int] = 3

    def __init__(
        self, given: str, *, holders: Sequence[tuple[str, int]] = (), allowed: str = "", next: str = ""
    ) -> None:
        self.holders = tuple(sorted(holders, key=lambda pair: -pair[1]))
        lines = [f"  {size / BYTES_PER_GB:>10.3f} GB  {what}" for what, size in self.holders]
        text = "\n".join([given, "largest holders:", *lines]) if lines else given
        super().__init__(text, allowed=allowed, next=next)


class ExecutionError(MeshwrightError):
    """A running job failed: a rank died, hung or returned nonsense; names rank and instruction."""


class RequestRefused(MeshwrightError):
    """A request that cannot be served: too long, too many, or not what this server does."""

    exit_code: ClassVar[int] = 2


class QueueFull(MeshwrightError):
    """A request cannot be served now: too many wait.

    Args:
        retry_after_s: when to come again.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, given: str, *, allowed: str = "", next: str = "", retry_after_s: float) -> None:
        super().__init__(given, allowed=allowed, next=next)
        self.retry_after_s = retry_after_s


class Draining(MeshwrightError):
    """A server takes no more requests: it ends."""

    exit_code: ClassVar[int] = 3


class MissingDataError(ExecutionError):
    """What a job was to read is not on this machine, so that it did not begin."""


class UnknownNameError(MeshwrightError):
    """Nothing of that kind has that name.

    Args:
        what: kind of thing in one or two words, such as "schedule" or "model".
        name: what was given.
        known: every name that would be accepted.
        next: what to do now, where a list of names is not the answer.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, name: str, known: Iterable[str], *, next: str = "") -> None:
        self.what = what
        self.name = name
        self.known = tuple(sorted(known))
        self.near = near_matches(name, self.known)
        allowed = "" if self.near else ", ".join(self.known[:NUM_KNOWN_SHOWN]) or "there are none"
        if not self.near and len(self.known) > NUM_KNOWN_SHOWN:
            allowed += f" and {len(self.known) - NUM_KNOWN_SHOWN} more"
        hint = f"did you mean {' or '.join(self.near)}?" if self.near else ""
        super().__init__(
            f"there is no {what} named {name!r}", allowed=allowed, next=" ".join(filter(None, (hint, next)))
        )


def user_message(given: str, allowed: str = "", next: str = "") -> str:
    """Join the three parts of a message: one line when short, one line each when `given` is a block."""
    parts = ["\n".join(map(_shortened, given.rstrip().split("\n")))]
    if allowed:
        parts.append(f"allowed: {allowed}")
    if next:
        parts.append(next)
    return ("\n" if "\n" in given else "; ").join(parts)


def _shortened(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    left_out = len(line) - 2 * NUM_ENDS_SHOWN
    return f"{line[:NUM_ENDS_SHOWN]} ({left_out} more characters) {line[-NUM_ENDS_SHOWN:]}"


def near_matches(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Names of `known` that look like `name`, best first, case ignored; those that contain it count too."""
    by_lower = {entry.lower(): entry for entry in known}
    lowered = name.lower()
    close = difflib.get_close_matches(lowered, by_lower, n=NUM_NEAR_MATCHES, cutoff=NEAR_MATCH_CUTOFF)
    containing = [entry for entry in by_lower if len(lowered) > 2 and lowered in entry]
    ordered = dict.fromkeys([*close, *containing])
    return tuple(by_lower[entry] for entry in list(ordered)[:NUM_NEAR_MATCHES])
