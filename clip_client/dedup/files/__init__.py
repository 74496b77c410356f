"""Finds files, reads their bytes and metadata, and tells which belong together. Nothing here decodes a picture."""
