"""The system pipette: its card, its mechanism, its study."""
