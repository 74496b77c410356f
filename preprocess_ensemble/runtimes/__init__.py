"""The runtimes that run model.onnx on this processor, their precision, and the check that they agree."""
