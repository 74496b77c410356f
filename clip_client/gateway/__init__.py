"""HTTP in the dialects of other services, in front of a ClipClient: bodies, errors and limits."""
