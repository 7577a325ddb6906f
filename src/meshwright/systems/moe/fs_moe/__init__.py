"""The system FSMoE: its card, its mechanism, its published grid."""
