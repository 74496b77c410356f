"""Vectors in files, and the search among them; it asks no server and knows no client."""
