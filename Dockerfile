# The server on a CPU:  docker build --tag polyvox .
# The server on a GPU:  docker build --tag polyvox:cuda --target cuda .
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
RUN pip install --no-cache-dir uv==0.13.7 && python -m venv /opt/polyvox
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
ENV VIRTUAL_ENV=/opt/polyvox

FROM build AS build-cpu
RUN uv pip install --no-cache --compile-bytecode --torch-backend cpu --constraint constraints.txt '.[otel]'

# PyTorch's package for Linux contains the CUDA libraries; the driver comes from the host.
FROM build AS build-cuda
RUN uv pip install --no-cache --compile-bytecode --constraint constraints.txt '.[otel]'

# Everything that is written goes to /data (voices), /cache (models, compiled kernels) and /tmp, so that the root
# filesystem may be read-only.
FROM ${PYTHON_IMAGE} AS runtime
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin polyvox \
    && install --directory --owner polyvox --group polyvox /data /cache
COPY deploy/docker/healthcheck.py /usr/local/lib/polyvox/healthcheck.py
ENV PATH=/opt/polyvox/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    POLYVOX_HOST=0.0.0.0 \
    POLYVOX_HOME=/data \
    POLYVOX_CACHE_DIR=/cache/polyvox \
    HF_HOME=/cache/huggingface
VOLUME ["/data", "/cache"]
WORKDIR /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=10m --retries=3 \
    CMD ["python", "/usr/local/lib/polyvox/healthcheck.py"]
ENTRYPOINT ["polyvox"]
CMD ["serve"]

# Triton compiles the launchers of kernels with a C compiler.
FROM runtime AS cuda
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/polyvox /opt/polyvox
USER 10001

FROM runtime AS cpu
COPY --from=build-cpu /opt/polyvox /opt/polyvox
USER 10001
