# syntax=docker/dockerfile:1
# Triton with this package. From the repository's root:
#
#   docker build -f containers/server.Dockerfile --tag clip-triton .                          weights inside
#   docker build -f containers/server.Dockerfile --target mounted --tag clip-triton:mounted . a repository at /models
#   docker build -f containers/server.Dockerfile --target tensorrt --tag clip-triton:tensorrt .
#
# One image for CPU and GPU: the model's instance_group is KIND_AUTO, so `--gpus all` is the only difference.
#
# The newest known release; single requests can crash releases before 25.07 (docs/security.md). It needs a driver
# for CUDA 13.4. 24.11 is the oldest that works: 24.10, the one that pip installs and the tests run, has Python 3.10.
# TensorRT on more than one GPU
# needs 25.06, because older ones do not tell the execution provider its GPU.
ARG TRITON_VERSION=26.09

FROM nvcr.io/nvidia/tritonserver:${TRITON_VERSION}-py3 AS package
WORKDIR /build
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY containers/constraints.txt containers/constraints.txt
COPY containers/scripts containers/scripts
COPY clip_client clip_client
COPY preprocess_ensemble preprocess_ensemble
RUN ["containers/scripts/install-package.sh", "/opt/clip", "gateway"]

# What exports the model is not needed to serve it, so it stays in this stage. EXTRAS="export local" brings PyTorch, for
# fp16 and for the models that clip-export does not know without it.
FROM python:3.11-slim AS export
ARG EXTRAS=local
ARG MODEL=ViT-B-32
ARG PRETRAINED=laion2b_s34b_b79k
ARG PRECISION=fp32
WORKDIR /build
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY containers/constraints.txt containers/constraints.txt
COPY containers/scripts containers/scripts
COPY clip_client clip_client
COPY preprocess_ensemble preprocess_ensemble
COPY triton_models triton_models
# hadolint ignore=SC2086
RUN containers/scripts/install-package.sh /opt/clip ${EXTRAS}
# A separate layer, so that another model does not install the packages again.
# hadolint ignore=DL3059
RUN containers/scripts/export-model.sh /opt/clip triton_models "${MODEL}" "${PRETRAINED}" "${PRECISION}"

FROM nvcr.io/nvidia/tritonserver:${TRITON_VERSION}-py3 AS mounted
# One release of the base image lacked the backend that runs the model.
RUN ["test", "-f", "/opt/tritonserver/backends/onnxruntime/libtriton_onnxruntime.so"]
COPY containers/scripts/install-libraries.sh /opt/clip/
RUN ["/opt/clip/install-libraries.sh"]
COPY --from=package /opt/clip /opt/clip
ENV PATH=/opt/clip/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    CLIP_URL=localhost:8001
# NVIDIA's image creates this user as triton-server. A number, because Kubernetes needs it for runAsNonRoot.
USER 1000:1000
WORKDIR /tmp
EXPOSE 8001 8002 8003
# The latest result of clip-serve's canary: exit 0 only while an image with a known vector gets that vector. Unlike
# `clip-client health`, it needs no certificate if gRPC uses TLS. http.client ignores proxies of the environment.
HEALTHCHECK --interval=15s --timeout=12s --start-period=10m --retries=2 \
    CMD ["python3", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8003, timeout=10); c.request('GET', '/healthz'); exit(c.getresponse().status != 200)"]
STOPSIGNAL SIGTERM
# Exec form, so that clip-serve receives the signals. HTTP is closed.
ENTRYPOINT ["clip-serve", "--host", "0.0.0.0", "--health-port", "8003", "--repository", "/models", "--log-json"]

# clip_image on TensorRT. The engine is built before the server is ready; with a volume for the cache, the next start finds
# it. To run both encoders in one server, add containers/tensorrt/models (CMD with
# `-- --model-repository=/clip/containers/tensorrt/models`). It names the ONNX file by a relative path, so both repositories
# have the same places as in the source tree.
FROM mounted AS tensorrt
COPY --from=export /build/triton_models /clip/triton_models
COPY containers/tensorrt/models /clip/containers/tensorrt/models
USER 0:0
RUN ["install", "--directory", "--owner", "1000", "--group", "1000", "/var/cache/clip-triton/tensorrt"]
USER 1000:1000
VOLUME /var/cache/clip-triton/tensorrt
CMD ["--repository", "/clip/triton_models", "--start-timeout-s", "1800", \
    "--tensorrt", "--tensorrt-cache", "/var/cache/clip-triton/tensorrt"]

FROM mounted AS baked
COPY --from=export /build/triton_models /models
