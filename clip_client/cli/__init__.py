"""The command line: ``clip-client``."""
