"""One module for each command. Functions import what only their command needs, so that ``--help`` starts quickly."""
