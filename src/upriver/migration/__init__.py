"""Moving keys between workers while rows flow: pure machines, no I/O."""
