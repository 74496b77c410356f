"""Experiments on the package: what an installation costs."""
