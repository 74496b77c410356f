"""The parts of the two Triton models. They run inside a server; nothing here may import the client."""
