"""Description of a pair of photos for people: position, differences and words. It proves nothing."""
