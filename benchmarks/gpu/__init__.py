"""The experiments for an NVIDIA card, and the bundle that takes them to a machine without a network."""
