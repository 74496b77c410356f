"""A report as a page and as a terminal table; it reads results and changes nothing."""
