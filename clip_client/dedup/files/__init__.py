"""Which files there are, what belongs together, and their bytes; nothing here decodes a picture."""
