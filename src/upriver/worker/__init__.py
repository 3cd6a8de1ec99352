"""The worker as a machine without I/O: epochs, lookups, moving keys, replicas, checkpoints."""
