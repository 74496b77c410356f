"""The plain service: PyTorch behind FastAPI, as CLIP is served without Triton."""
