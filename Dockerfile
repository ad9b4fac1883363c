# Two images: the gateway (`--target router`) and the server inside a sandbox (`--target
# runtime`). Both hold one Python environment from the committed lock, in /opt/sandgate, and no
# tools to build with. Tests follow these steps where no container engine runs.
#
#   docker build --target router --tag sandgate-router:0.1.0 .
#   docker build --target runtime --tag sandgate-runtime:0.1.0 .
ARG PYTHON=3.11-slim

# Everything of the lock, checked by its hashes, and our own wheel built with nothing else.
FROM python:${PYTHON} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements.lock ./
RUN python -m venv /opt/build
RUN /opt/build/bin/python -m pip install --quiet --require-hashes -r requirements.lock
COPY LICENSE README.md hatch_build.py pyproject.toml ./
COPY router ./router
COPY runtime ./runtime
COPY sdk ./sdk
RUN /opt/build/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /opt/wheels .
RUN /opt/build/bin/python -m pip install --quiet --no-deps --no-index /opt/wheels/*.whl
COPY deploy/image ./deploy/image

# The part of it that an image needs, under the path where it will run.
FROM build AS router-build
RUN /opt/build/bin/python deploy/image/locked_subset.py requirements.lock gateway > /opt/image.lock
RUN python -m venv --without-pip /opt/sandgate
RUN /opt/build/bin/python -m pip --python /opt/sandgate/bin/python install --quiet --no-deps --require-hashes -r /opt/image.lock
RUN /opt/build/bin/python -m pip --python /opt/sandgate/bin/python install --quiet --no-deps --no-index /opt/wheels/*.whl
RUN cp deploy/image/healthcheck.py /opt/sandgate/healthcheck.py

FROM build AS runtime-build
RUN /opt/build/bin/python deploy/image/locked_subset.py requirements.lock runtime > /opt/image.lock
RUN python -m venv --without-pip /opt/sandgate
RUN /opt/build/bin/python -m pip --python /opt/sandgate/bin/python install --quiet --no-deps --require-hashes -r /opt/image.lock
RUN /opt/build/bin/python -m pip --python /opt/sandgate/bin/python install --quiet --no-deps --no-index /opt/wheels/*.whl
RUN cp deploy/image/healthcheck.py /opt/sandgate/healthcheck.py

FROM python:${PYTHON} AS router
# What the image came with to install more.
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/lib/python3*/ensurepip /usr/local/bin/pip*
COPY --from=router-build /opt/sandgate /opt/sandgate
# glibc gives large buffers back and asks for them again at each upload, if it is let.
ENV PATH=/opt/sandgate/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_TRIM_THRESHOLD_=268435456 \
    MALLOC_MMAP_THRESHOLD_=33554432 \
    MALLOC_TOP_PAD_=16777216
USER 65532:65532
WORKDIR /
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-I", "/opt/sandgate/healthcheck.py", "/healthz", "8080", "SANDGATE_LISTEN"]
ENTRYPOINT ["sandgate"]
CMD ["router"]

FROM python:${PYTHON} AS runtime
RUN useradd --uid 1000 --create-home --home-dir /home/user user && install -d -o 1000 -g 1000 /app /var/lib/sandgate
COPY --from=runtime-build /opt/sandgate /opt/sandgate
# The runtime's own environment stays off the path: `python3` of a command is the image's, with
# pip, and what a command installs cannot change the runtime.
ENV SANDGATE_ISOLATED=1 \
    SANDGATE_STATE_DIR=/var/lib/sandgate \
    PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /app
EXPOSE 8888
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/opt/sandgate/bin/python", "-I", "/opt/sandgate/healthcheck.py", "/v1/health", "8888"]
ENTRYPOINT ["/opt/sandgate/bin/python", "-I", "-m", "sandgate_runtime"]
CMD ["--host", "0.0.0.0", "--port", "8888"]
