"""Test aids: a real server, real photos and a small model. Tests, benchmarks and the demo use them, the product never.

::

    from preprocess_ensemble.testing.sample_photos import write_with_copies
    from preprocess_ensemble.testing.server import serving

    families = write_with_copies(directory)     # photos and known near-duplicates
    with serving(repository) as server:         # a clip-serve on free ports
        batch = SyncClipClient(server.grpc_url).embed(sorted(directory.iterdir()))
"""
