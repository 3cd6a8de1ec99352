"""Loops, threads, timers and leases: carries out what the machines ask for."""
