"""Durable files: runs, manifests, checkpoints, and their readers."""
