"""Doors: how programs that are not Python, and people, ask a running app; all through one gateway."""
