"""One module for each command of ``clip-client``. Code that several commands share belongs to options or output.

A function imports what only its command needs, so that ``--help`` and the other commands start as quickly without it.
"""
