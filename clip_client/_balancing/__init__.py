"""Which server gets the next request, how many may be in flight, and when to try again; no image data here."""
