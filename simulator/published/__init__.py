"""The rules of live migration as their documents publish them, with their faults."""
