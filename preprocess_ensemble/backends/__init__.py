"""The parts of the Triton models, which run inside a server."""
