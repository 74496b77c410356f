"""Experiments on finding duplicates: accuracy, cost, scale."""
