"""Files that last: runs, manifests, checkpoints, and what reads them."""
