"""Models served on CPUs by OpenVINO's runtime, in graphs built here around its paged-attention operation. No torch."""

import sys

# When they are imported, OpenVINO and NNCF tell their makers of it over the network, from a process forked off a thread: an
# import of the package that does it fails from here on, which both take for a machine without it.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
