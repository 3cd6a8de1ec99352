"""Plays the machines under a seeded scheduler, network and faults, and checks them after each step."""
