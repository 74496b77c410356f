"""Which experiments to run on an NVIDIA card, and the bundle that takes them to a machine without a network."""
