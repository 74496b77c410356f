"""The parts of the Triton models. They run inside a server; nothing here may import the client."""
