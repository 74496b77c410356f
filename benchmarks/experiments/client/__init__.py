"""Experiments on the client: overhead, transfer, overload."""
