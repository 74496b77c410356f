"""Which photos show the same, which one is proved to be a copy of which, which one to keep, and the groups."""
