"""``clip-serve``: starts a ``tritonserver``, probes it as a client does, and restarts it when it fails."""
