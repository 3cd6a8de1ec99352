"""Spark SQL in, relational algebra out; refusals."""
