"""The plain service: PyTorch behind FastAPI, the way CLIP is served where there is no Triton."""
