"""The structure of image files without their pixels: a module for each container, read through ``read``."""
