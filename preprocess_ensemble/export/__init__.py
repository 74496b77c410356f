"""From an open_clip model to a checked ``model.onnx``; the only place that imports torch and open_clip."""
