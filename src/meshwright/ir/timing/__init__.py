"""When instructions start: dependencies, matching, rings and replay."""
