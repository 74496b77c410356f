"""What the structure of an image file says without its pixels: a module for each container, read through ``read``."""
