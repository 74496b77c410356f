"""Reports as an HTML page and in the terminal. Modules here read results and change nothing."""
