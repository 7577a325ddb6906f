"""Systems for long sequences: who attends to what, and which devices share which sequences."""
