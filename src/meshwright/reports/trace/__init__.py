"""A trace as timeline, SVG, terminal text, Perfetto."""
