"""Finds the ``tritonserver`` of this machine, becomes it, and cleans up after one that was killed."""
