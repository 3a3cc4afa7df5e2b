# The same base in both stages: a virtual environment holds a link to the interpreter that made it.
# The tag names an exact Python, but a tag can be moved. To pin the bytes, give the digest of the index
# (not of one architecture) when building:
#   --build-arg BASE=docker.io/library/python:3.11.14-slim-bookworm@sha256:...
ARG BASE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python3 -m venv --without-pip /opt/venv && python3 -m venv --without-pip /opt/build

# Wheels only: every dependency has one for amd64 and for arm64, so no stage ever needs a compiler.
COPY requirements.txt deploy/build-requirements.txt ./
RUN python3 -m pip --python /opt/venv/bin/python install --no-compile --require-hashes --only-binary=:all: \
      --requirement requirements.txt \
 && python3 -m pip --python /opt/build/bin/python install --no-compile --require-hashes --only-binary=:all: \
      --requirement build-requirements.txt

COPY pyproject.toml README.md LICENSE ./
COPY aosp_plugin aosp_plugin
# Byte code is made here, for the root file system is read-only where it runs; unchecked, since nothing changes it.
RUN /opt/build/bin/python -m hatchling build --target wheel --directory /tmp/wheel \
 && python3 -m pip --python /opt/venv/bin/python install --no-compile --no-deps --no-index /tmp/wheel/*.whl \
 && /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="aosp-device-plugin" \
      org.opencontainers.image.description="Kubernetes device plugin that hands Android binder nodes to containers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Saves no bytes (the base has them), but leaves no installer in a container that runs as root.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.*/ensurepip /usr/local/lib/python3.*/site-packages/pip*
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# The kubelet's plugin directory is 0750 root:root, so only uid 0 can put a socket there. It needs no capability for
# that; deploy/base drops them all.
USER 0
WORKDIR /
ENTRYPOINT ["aosp-plugin"]
CMD ["serve"]
