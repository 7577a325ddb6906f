"""What each thread of the host was in at any moment: annotations and operators inside each other, and what they launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshwright.interop.profiler import naming
from meshwright.interop.profiler.chrome_file import ChromeEvent, ChromeFile, Thread
from meshwright.interop.profiler.naming import Naming

OPERATOR, ANNOTATIONS = "cpu_op", ("user_annotation", "python_function")
LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "xpu_runtime")
_BACKWARD_NODE = "autograd::"


@dataclass(eq=False, slots=True)
class Frame:
    """An annotation or operator with what is around it.

    ``said``: the innermost known name; ``root``: the outermost operator that is none of autograd's own; ``is_forward``: of
    such, did backward visit what is in it? ``is_unit``: an outermost operator, or an annotation of one instruction.
    """

    event: ChromeEvent
    above: Frame | None
    said: Naming | None
    exchange: Naming | None
    sharding: str
    root: Frame | None
    is_forward: bool = False
    is_unit: bool = False
    is_in_unit: bool = False

    @property
    def naming(self) -> Naming:
        """The name of the computes in it."""
        if self.root is not None and self.root.is_forward:
            if self.said is None:
                return Naming(naming.FORWARD, source=naming.BY_AUTOGRAD)
            if self.said.source == naming.BY_AUTOGRAD and self.said.name == naming.BACKWARD:
                return Naming(naming.RECOMPUTE, source=naming.BY_AUTOGRAD)
        return self.said or naming.UNKNOWN


def frames_of(file: ChromeFile) -> tuple[list[Frame], dict[int, Frame | None], dict[int, ChromeEvent]]:
    """All frames of a file; and of every launch its frame (None: in nothing) and its event, by correlation."""
    by_thread: defaultdict[Thread, list[tuple[float, float, ChromeEvent | None]]] = defaultdict(list)
    for event in file.events:
        if event.category in (OPERATOR, *ANNOTATIONS, *LAUNCHES):
            by_thread[event.thread].append((event.start_s, -event.end_s, event))
    for point in file.forwards:  # behind what begins there
        by_thread[point.thread].append((point.at_s, 0.0, None))
    frames: list[Frame] = []
    launched: dict[int, Frame | None] = {}
    launches: dict[int, ChromeEvent] = {}
    for items in by_thread.values():
        items.sort(key=lambda item: item[:2])
        for frame, launch in _walk(items):
            if launch is not None:
                launched[launch.args["correlation"]] = frame
                launches[launch.args["correlation"]] = launch
            elif frame is not None:
                frames.append(frame)
    return frames, launched, launches


def _walk(
    items: Iterable[tuple[float, float, ChromeEvent | None]],
) -> Iterator[tuple[Frame | None, ChromeEvent | None]]:
    """Frames as they begin, and launches with the frame around them."""
    top: Frame | None = None
    for at_s, _, event in items:
        while top is not None and (top.event.end_s < at_s or (top.event.end_s == at_s and event is not None)):
            top = top.above
        if event is None:
            if top is not None and top.root is not None:
                top.root.is_forward = True
        elif event.category in LAUNCHES:
            if type(event.args.get("correlation")) is int:
                yield top, event
        else:
            top = _frame(event, top)
            yield top, None


def _frame(event: ChromeEvent, above: Frame | None) -> Frame:
    said, exchange, sharding, root = (
        (None, None, "", None) if above is None
        else (above.said, above.exchange, above.sharding, above.root)
    )  # fmt: skip
    own: Naming | None = None
    if event.category == OPERATOR:
        if event.name.startswith(naming.AUTOGRAD) and (said is None or not said.is_instruction):
            said = Naming(naming.BACKWARD, source=naming.BY_AUTOGRAD)
    else:
        own = naming.annotation(event.name)
        said = own or said
    exchange = naming.group_call(event.name) or exchange
    made = Frame(event, above, said, exchange, naming.sharding(event.name) or sharding, root)
    is_autograd = event.name.startswith(_BACKWARD_NODE) or "Backward" in event.name
    is_operator = event.category == OPERATOR
    if root is None and is_operator and not is_autograd:
        made.root = made
    made.is_in_unit = above is not None and (above.is_unit or above.is_in_unit)
    is_instruction = not is_operator and said is not None and said.is_instruction
    is_row = own is not None and own.place >= 0  # whatever a library left open around it
    made.is_unit = is_row or (not made.is_in_unit and (is_operator or is_instruction))
    return made
