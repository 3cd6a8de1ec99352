"""Spark's analysed plan in, relational algebra out; refusals."""
