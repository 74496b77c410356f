"""The state of a review, without HTTP: the groups, the choices about them, and the work that carries choices out."""
