"""How a file stores its picture, and what it holds besides."""
