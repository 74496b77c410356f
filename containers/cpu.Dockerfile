# syntax=docker/dockerfile:1
# Triton on a CPU, without NVIDIA's image and without PyTorch. From the repository's root:
#
#   docker build -f containers/cpu.Dockerfile --tag clip-triton:cpu .
#   docker run -p 8001:8001 -v clip-models:/models clip-triton:cpu --model ViT-B-32
#
# The first start downloads the weights into the volume; later starts need no network. Single requests can crash this
# Triton (docs/security.md), so it is for clients that you trust. BASE needs Python 3.11 or 3.12 with pip and libpython,
# glibc 2.35 and apt-get, on x86-64.
ARG BASE=python:3.11-slim

# hadolint ignore=DL3006
FROM ${BASE} AS package
WORKDIR /build
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY containers/constraints.txt containers/constraints.txt
COPY containers/scripts containers/scripts
COPY clip_client clip_client
COPY preprocess_ensemble preprocess_ensemble
RUN ["containers/scripts/install-package.sh", "/opt/clip", "gateway", "local"]
# hadolint ignore=DL3059
RUN ["containers/scripts/install-pip-server.sh", "/opt/clip"]

# hadolint ignore=DL3006
FROM ${BASE}
COPY containers/scripts/install-libraries.sh /opt/clip/
RUN ["/opt/clip/install-libraries.sh"]
COPY --from=package /opt/clip /opt/clip
# Nothing is written outside /models and /tmp, so the root file system can be read-only.
RUN ["install", "--directory", "--owner", "1000", "--group", "1000", "/models"]
VOLUME /models
ENV PATH=/opt/clip/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HOME=/models/.weights \
    CLIP_URL=localhost:8001
# A number, because Kubernetes needs it for runAsNonRoot.
USER 1000:1000
WORKDIR /tmp
EXPOSE 8001 8002 8003
# The latest result of clip-serve's canary: exit 0 only while an image with a known vector gets that vector. The start
# period includes the download. http.client ignores proxies of the environment.
HEALTHCHECK --interval=15s --timeout=12s --start-period=30m --retries=2 \
    CMD ["python3", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8003, timeout=10); c.request('GET', '/healthz'); exit(c.getresponse().status != 200)"]
STOPSIGNAL SIGTERM
# Exec form, so that clip-serve receives the signals. HTTP is closed.
ENTRYPOINT ["clip-serve", "--host", "0.0.0.0", "--health-port", "8003", "--repository", "/models"]
CMD []
