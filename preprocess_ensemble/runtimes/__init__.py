"""What runs model.onnx on this processor, and in which precision. Nothing here may know about Triton or a client."""
