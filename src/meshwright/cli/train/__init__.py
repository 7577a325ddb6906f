"""The commands train, checkpoint, calibrate and compare."""
