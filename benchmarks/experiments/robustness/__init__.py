"""Experiments on what breaks: faults under load, and endurance."""
