"""Models served on CPUs by OpenVINO's runtime, in graphs built here around its paged-attention operation. No torch."""
