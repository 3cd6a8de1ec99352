"""The operators that keep a view's state current."""
