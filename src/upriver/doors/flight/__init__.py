"""The Arrow Flight door: lookups, scans, and queries by plain Flight and by Flight SQL."""
