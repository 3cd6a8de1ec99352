"""Who holds which copy of which task: the assignor of document 002, a pure function. ``docs/design/membership.md``."""
