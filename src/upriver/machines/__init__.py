"""The worker and the coordinator, as machines without I/O: events in, actions out."""
