"""Experiments on decoding and preprocessing: speed, fidelity, damaged files."""
