"""The assignor: which worker holds which copy of which task, as a pure function."""
