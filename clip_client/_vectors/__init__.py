"""Vectors in files, and the search among them, without a server or a client."""
