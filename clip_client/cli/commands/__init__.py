"""One module for each command of ``clip-client``. Code that several commands share belongs to options or output.

Functions import the modules that only their command needs, so that ``--help`` and other commands start quickly.
"""
