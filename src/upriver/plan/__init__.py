"""Logical operators, keys, regions and provenance of views. No I/O."""
