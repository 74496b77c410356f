# syntax=docker/dockerfile:1
# All servers of the comparison, in one container on one GPU, on these ports:
#
#   plain PyTorch service   8002
#   Triton, ONNX Runtime    8010 HTTP, 8011 gRPC, 8012 metrics
#   Triton, TensorRT        8020 HTTP, 8021 gRPC, 8022 metrics
#
#   docker build -f containers/server.Dockerfile --target tensorrt --tag clip-triton:tensorrt .
#   docker build -f containers/plain.Dockerfile --tag clip-plain .
#   docker build -f containers/comparison.Dockerfile --tag clip-comparison .
#
# For measurements only: three servers share one machine, and HTTP is open.
ARG SERVER_IMAGE=clip-triton:tensorrt
ARG PLAIN_IMAGE=clip-plain:latest
# hadolint ignore=DL3006
FROM ${PLAIN_IMAGE} AS plain

# hadolint ignore=DL3006
FROM ${SERVER_IMAGE}
# The plain service keeps its own Python, which is newer than that of Triton's image.
COPY --from=plain /usr/local /opt/plain/python
COPY --from=plain /opt/clip /opt/plain/packages
COPY containers/scripts/comparison.sh /opt/clip/bin/clip-comparison
USER 0:0
RUN ["install", "--directory", "--owner", "1000", "--group", "1000", "/weights"]
USER 1000:1000
ENV HF_HOME=/weights \
    CLIP_MODEL=ViT-B-32 \
    CLIP_PRETRAINED=laion2b_s34b_b79k \
    CLIP_PLAIN_PYTHON=/opt/plain/python/bin/python3 \
    CLIP_PLAIN_PACKAGES=/opt/plain/packages/lib/python3.11/site-packages \
    CLIP_URL=localhost:8011
EXPOSE 8002 8010 8011 8012 8020 8021 8022
HEALTHCHECK --interval=15s --timeout=12s --start-period=30m --retries=2 \
    CMD ["clip-client", "health", "--quiet", "--timeout", "10"]
ENTRYPOINT ["clip-comparison"]
CMD []
