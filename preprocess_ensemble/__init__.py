"""What runs inside Triton, and what builds, checks and starts it; nothing here decides which photos are copies."""

import os

# ONNX Runtime's builds for Linux report to Microsoft otherwise; it reads this when it is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
