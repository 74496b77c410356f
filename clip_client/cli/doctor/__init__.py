"""The checks of this machine and of a server, for ``clip-client doctor``."""
