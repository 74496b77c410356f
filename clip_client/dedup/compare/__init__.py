"""Which photos show the same, and which one to keep; numbers in, groups out, no input or output."""
