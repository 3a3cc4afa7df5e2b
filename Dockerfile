# The image is assembled from files (hack/image/assemble), and only the build stage runs anything, on the machine that
# builds. Therefore an image for arm64 is built on amd64 without emulation. `make image` builds it reproducibly.
#
# Both bases are the same image for two platforms; the digest is that of the index. Its Python is taken over, with the
# shared libraries that it depends on.
ARG BASE=docker.io/library/python:3.13.15-slim-trixie@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285
ARG BUILD_BASE=${BASE}

# Files only: it is never run.
FROM ${BASE} AS target

FROM --platform=${BUILDPLATFORM} ${BUILD_BASE} AS build
ARG TARGETARCH
# Byte code depends on the order of sets.
ENV PYTHONHASHSEED=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Wheels only: every dependency has one for amd64 and arm64, so no stage needs a compiler. The secrets are optional: pip's
# configuration, and certificates for it, of a machine that uses a mirror.
COPY requirements.txt deploy/build-requirements.txt ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=certificates,target=/run/certificates.pem \
    python3 -m venv --without-pip /opt/build \
 && python3 -m pip --python /opt/build/bin/python install --no-compile --require-hashes --only-binary=:all: \
      --requirement build-requirements.txt
COPY hack/image/assemble hack/image/assemble
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=certificates,target=/run/certificates.pem \
    /opt/build/bin/python -m hack.image.assemble packages --arch ${TARGETARCH} --requirements requirements.txt \
      --directory /packages
COPY pyproject.toml README.md LICENSE ./
COPY aosp_plugin aosp_plugin
RUN --mount=type=bind,from=target,source=/,target=/target \
    /opt/build/bin/python -m hatchling build --target wheel --directory /wheel \
 && /opt/build/bin/python -m hack.image.assemble root --arch ${TARGETARCH} --packages /packages --wheel '/wheel/*.whl' \
      --base /target --root /root-directory

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="aosp-device-plugin" \
      org.opencontainers.image.description="Kubernetes device plugin that allocates Android binder devices to containers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /root-directory/ /
ENV PATH=/opt/venv/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# The kubelet's plugin directory is 0750 root:root, so only uid 0 can create a socket there. That requires no capability;
# deploy/base drops all of them. Commands other than serve also run as nonroot (65532).
USER 0
WORKDIR /
ENTRYPOINT ["aosp-plugin"]
CMD ["serve"]
