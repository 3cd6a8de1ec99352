"""Operators and expressions over Arrow batches. No I/O."""
