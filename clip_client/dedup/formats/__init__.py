"""The storage of a picture in its file, and what the file holds besides."""
