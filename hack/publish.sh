#!/usr/bin/env bash
# Push the image and the chart of a release to a registry, and print their digests as image=... and chart=...
#
#   hack/publish.sh DIST REGISTRY/NAME REGISTRY/CHARTS VERSION
#
# It needs skopeo and Helm, logged in. PLAIN_HTTP=yes is for a registry of a test. The image's index gets the digest that
# the packed chart names; it is an error if the registry has another one.
set -euo pipefail
dist=$(realpath "$1") image=$2 charts=$3 version=$4
here=$(cd "$(dirname "$0")/.." && pwd)

layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT
digest=$(cd "$here" && python3 -m hack.release.images "$dist" "$layout/image")

tls=() plain=()
if [ "${PLAIN_HTTP:-}" = yes ]; then
    tls=(--dest-tls-verify=false) plain=(--plain-http)
fi
skopeo copy --quiet --all --preserve-digests "${tls[@]}" "oci:$layout/image:release" "docker://$image:$version" >&2
pushed=$(skopeo inspect --raw "${tls[@]/--dest-/--}" "docker://$image:$version" | sha256sum | cut -d ' ' -f 1)
if [ "sha256:$pushed" != "$digest" ]; then
    echo "$image:$version has the digest sha256:$pushed instead of $digest" >&2
    exit 1
fi

chart=$(helm push "${plain[@]}" "$dist/aosp-device-plugin-$version.tgz" "oci://$charts" 2>&1 | tee /dev/stderr |
    sed -n 's/^Digest: //p')
[ -n "$chart" ] || { echo "helm push printed no digest" >&2; exit 1; }
echo "image=$digest"
echo "chart=$chart"
