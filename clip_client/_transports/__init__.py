"""One adapter for each way to reach a model: gRPC, or in process. Only modules here use the wire format."""
