"""Experiments on the server: rate, latency, batching, precision."""
