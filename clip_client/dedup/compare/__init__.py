"""Which photos show the same and which one to keep: arithmetic on features. Nothing here reads or writes a file."""
