"""What a device is told to do."""
