"""What lies in a model repository: ``config.pbtxt`` and the passport, read and written; no weights, no server."""
