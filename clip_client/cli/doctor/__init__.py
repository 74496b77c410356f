"""``clip-client doctor`` and its checks of this machine and of a server."""
