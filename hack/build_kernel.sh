#!/usr/bin/env bash
# Build a small kernel with binderfs from Debian's linux-source, for tests/e2e/kernel.
#
#   hack/build_kernel.sh SOURCE.tar.xz FRAGMENT OUTPUT
#
# OUTPUT is the bzImage. Takes about five minutes on two cores, and 1.5 GB in TMPDIR while it runs.
set -euo pipefail

source=$(realpath "$1")
fragment=$(realpath "$2")
output=$(realpath -m "$3")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar --extract --xz --file "$source" --directory "$work" --strip-components 1
cd "$work"

make --silent tinyconfig >config.log 2>&1
scripts/kconfig/merge_config.sh -m .config "$fragment" &>>config.log
make --silent olddefconfig &>>config.log

# An option whose own conditions don't hold vanishes without a word.
lost=$(grep '^CONFIG_' "$fragment" | grep --invert-match --line-regexp --fixed-strings --file .config || true)
if [ -n "$lost" ]; then
    echo "the configuration has not kept: $lost" >&2
    exit 1
fi

make --silent --jobs "$(nproc)" bzImage
cp arch/x86/boot/bzImage "$output"
