"""One module for each command of ``clip-client``. Code that several commands share belongs to options or output."""
