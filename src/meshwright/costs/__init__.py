"""What work costs: operators on a device, messages between devices, bytes of values. No torch in here."""
