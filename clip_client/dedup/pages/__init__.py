"""Shows reports as HTML pages, lines and words. Modules here read results and change nothing."""
