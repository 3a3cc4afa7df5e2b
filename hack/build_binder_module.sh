#!/usr/bin/env bash
# Build the binder driver with binderfs as a module for Debian's kernel, for tests/e2e/kernel.
#
#   hack/build_binder_module.sh SOURCE.tar.xz HEADERS OUTPUT
#
# SOURCE.tar.xz is the archive of the package linux-source, HEADERS the directory of linux-headers-*, and OUTPUT the
# module. Debian builds the same driver without CONFIG_ANDROID_BINDERFS. Its kernel does not export two symbols that
# binderfs.c needs: init_ipc_ns is reachable through the first task, and put_ipc_ns becomes a no-op, so that each
# unmounted binderfs leaks a reference to an IPC namespace.
#
# For another architecture, the environment has the kernel's ARCH and CROSS_COMPILE.
set -euo pipefail

source=$(realpath "$1")
headers=$(realpath "$2")
output=$(realpath -m "$3")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar --extract --xz --file "$source" --directory "$work" --strip-components 3 --wildcards '*/drivers/android/*'
cd "$work"

sed --in-place '/^#include "binder_internal.h"/a \
#include <linux/sched/task.h>\
#define init_ipc_ns (*init_task.nsproxy->ipc_ns)\
#define put_ipc_ns(ns) do { } while (0)' binderfs.c

options=(CONFIG_ANDROID_BINDER_IPC=m CONFIG_ANDROID_BINDERFS=y KCFLAGS=-DCONFIG_ANDROID_BINDERFS=1)
make --silent --directory "$headers" M="$work" "${options[@]}" modules
"${CROSS_COMPILE:-}strip" --strip-debug binder_linux.ko
cp binder_linux.ko "$output"
