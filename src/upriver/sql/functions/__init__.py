"""Functions of SQL: each rule takes typed operands and a place, and gives the value."""
