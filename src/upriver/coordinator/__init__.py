"""The coordinator as a machine without I/O: epochs, rescales, recovery, scans."""
