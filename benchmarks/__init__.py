"""Measures Upriver, side by side with Spark or another store."""
