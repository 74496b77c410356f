"""One module for each command of ``clip-client``; what several need lies in ``options`` and ``output``."""
