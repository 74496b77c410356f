"""From an image file to the pixels that the model takes. Nothing here may know Triton, ONNX or the network."""
