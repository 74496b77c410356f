"""From an iterable of images to vectors in order: read, encode, pack, send; it never opens a connection itself."""
