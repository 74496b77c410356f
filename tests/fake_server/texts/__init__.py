"""Texts through the client, against a scripted server."""
