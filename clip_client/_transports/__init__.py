"""One adapter for each way to reach a model: gRPC, or in process. Only these modules know the wire format."""
