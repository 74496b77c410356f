"""From an image file to the pixels that the model takes; nothing here knows Triton, ONNX or the network."""
