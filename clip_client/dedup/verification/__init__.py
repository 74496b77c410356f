"""The step of a search that proves copies: it pairs photos that may show the same, and has them aligned. What an
alignment is belongs to ``verify``, and the groups to ``compare``."""
