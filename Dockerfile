# The image has files of Debian's packages and of wheels (hack/image/root.sh), and only the build stage runs anything, on the
# machine that builds. Therefore an image for arm64 is built on amd64 without emulation. `make image` builds it reproducibly.
#
# The base has apt of Debian 13, and Python of the same minor version, with pip. The digest is that of the index.
ARG BASE=docker.io/library/python:3.13.15-slim-trixie@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285

FROM --platform=${BUILDPLATFORM} ${BASE} AS build
ARG TARGETARCH
# Byte code depends on the order of sets.
ENV PYTHONHASHSEED=0 PYTHONPATH=/opt/build PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY deploy/build-requirements.txt hack/image/root.sh LICENSE README.md pyproject.toml requirements.txt ./
COPY aosp_plugin aosp_plugin
# Wheels only: every dependency has one for amd64 and arm64. The secrets are optional: pip's configuration and the
# certificates of a machine that uses a mirror.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=certificates,target=/etc/ssl/certs/ca-certificates.crt \
    python3 -m pip install --quiet --target /opt/build --require-hashes --only-binary=:all: \
      --requirement build-requirements.txt \
 && sh root.sh ${TARGETARCH} /root-directory

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
