# syntax=docker/dockerfile:1
# The baseline: open_clip behind FastAPI, one process, no Triton. PyTorch's usual build supports CPU and CUDA.
#
#   docker build -f containers/plain.Dockerfile --tag clip-plain .
FROM python:3.11-slim AS package
WORKDIR /build
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY containers/scripts containers/scripts
COPY clip_client clip_client
COPY preprocess_ensemble preprocess_ensemble
RUN ["containers/scripts/install-package.sh", "/opt/clip", "export", "baseline"]

FROM python:3.11-slim
COPY --from=package /opt/clip /opt/clip
COPY benchmarks/__init__.py /opt/clip/lib/python3.11/site-packages/benchmarks/__init__.py
COPY benchmarks/peers/__init__.py /opt/clip/lib/python3.11/site-packages/benchmarks/peers/__init__.py
COPY benchmarks/peers/baseline /opt/clip/lib/python3.11/site-packages/benchmarks/peers/baseline
ENV PATH=/opt/clip/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/weights \
    CLIP_MODEL=ViT-B-32 \
    CLIP_PRETRAINED=laion2b_s34b_b79k
# The first start downloads the weights; a volume keeps them.
RUN ["install", "--directory", "--owner", "1000", "--group", "1000", "/weights"]
VOLUME /weights
USER 1000:1000
WORKDIR /tmp
EXPOSE 8002
HEALTHCHECK --interval=15s --timeout=12s --start-period=10m --retries=2 \
    CMD ["python3", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8002, timeout=10); c.request('GET', '/healthz'); exit(c.getresponse().status != 200)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["python3", "-m", "benchmarks.peers.baseline", "--host", "0.0.0.0", "--port", "8002"]
