"""PipelineTimes: what the stages of a pipeline take where they stand, and messages between any two of them."""

from __future__ import annotations

from typing import NamedTuple


class PipelineTimes(NamedTuple):
    """For schedules whose order depends on where stages stand; devices are numbered along the pipeline.

    Attributes:
        forward_s: seconds of the forward of one microbatch, by device.
        message_s: ``[source][target]`` seconds of an activation from one device to another; 0 from a device to itself.
    """

    forward_s: tuple[float, ...]
    message_s: tuple[tuple[float, ...], ...]
