"""StepOverhead: what an engine makes of kernels that were measured alone: the host's time of a step, and a factor."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.error import SpecError

# Of vLLM 0.19 with Llama-3.1-8B on one RTX PRO 6000 (a public log of 300 requests by LLMServingSim's authors), fitted on the
# first third of them, beside a factor of 1.05 for the roofline of the Workstation Edition's data sheet. With H100's curves
# scaled to the Server Edition benchmarks/fit/fit_serving.py finds 4.0 ms and 1.15. Scheduling, sampling and the packing of
# inputs are in it, as far as they do not run beside the device's work.
HOST_S = 3.0e-3


@dataclass(frozen=True)
class StepOverhead:
    """`host_s`: seconds of each step in which the device waits for the host. `device_factor`: multiplies all that the device
    does."""

    host_s: float = HOST_S
    device_factor: float = 1.0

    def __post_init__(self) -> None:
        if not (0.0 <= self.host_s < float("inf") and 0.0 < self.device_factor < float("inf")):
            raise SpecError(
                f"a step's overhead of {self.host_s} s and a factor of {self.device_factor}",
                allowed="seconds from 0, a factor above 0",
            )
