"""The review server."""
