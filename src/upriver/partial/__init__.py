"""Views that keep only the keys that are read: presence, upqueries, cones, eviction. No I/O."""
