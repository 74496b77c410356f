"""One adapter for each way to reach a model: gRPC, HTTP, or in process; only these know the wire."""
