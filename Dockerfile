# Both stages use the same base, because a virtual environment contains a link to its interpreter.
# The tag names an exact Python version, but a tag can be moved. To pin the content, pass the digest of the index
# (not of one architecture):
#   --build-arg BASE=docker.io/library/python:3.11.14-slim-bookworm@sha256:...
ARG BASE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python3 -m venv --without-pip /opt/venv && python3 -m venv --without-pip /opt/build

# Wheels only: every dependency has one for amd64 and arm64, so no stage needs a compiler.
COPY requirements.txt deploy/build-requirements.txt ./
RUN python3 -m pip --python /opt/venv/bin/python install --no-compile --require-hashes --only-binary=:all: \
      --requirement requirements.txt \
 && python3 -m pip --python /opt/build/bin/python install --no-compile --require-hashes --only-binary=:all: \
      --requirement build-requirements.txt

COPY pyproject.toml README.md LICENSE ./
COPY aosp_plugin aosp_plugin
# The byte code is compiled here because the root file system is read-only at run time, and unchecked because it never
# changes.
RUN /opt/build/bin/python -m hatchling build --target wheel --directory /tmp/wheel \
 && python3 -m pip --python /opt/venv/bin/python install --no-compile --no-deps --no-index /tmp/wheel/*.whl \
 && /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="aosp-device-plugin" \
      org.opencontainers.image.description="Kubernetes device plugin that allocates Android binder devices to containers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Does not reduce the size, but leaves no installer in a container that runs as root.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.*/ensurepip /usr/local/lib/python3.*/site-packages/pip*
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# The kubelet's plugin directory is 0750 root:root, so only uid 0 can create a socket there. That requires no capability;
# deploy/base drops all of them.
USER 0
WORKDIR /
ENTRYPOINT ["aosp-plugin"]
CMD ["serve"]
