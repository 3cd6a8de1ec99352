"""Lookups and rescales from any process, without Spark."""
