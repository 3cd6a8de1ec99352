"""Keeping only the keys that are read, and asking for them when they are: pure machines, no I/O."""
