#!/bin/sh
# Make the root directory of the image, in the build stage of the Dockerfile: root.sh ARCH DIRECTORY
#
# Packages of Debian and wheels are unpacked, and nothing of them is run: an image for arm64 is built on amd64 without
# emulation. As in distroless images, there is no shell, installer or tool, and scanners find the records of the packages.
set -eu
arch=$1 root=$2
case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "root.sh: no image for $arch" >&2 && exit 1 ;;
esac

packages="base-files gcc-14-base libc6 libexpat1 libffi8 libgcc-s1 libpython3.13-minimal libpython3.13-stdlib libssl3t64 \
    libstdc++6 libzstd1 python3.13-minimal zlib1g"
library=/usr/lib/python3.13
venv=/opt/venv
site_packages=$venv/lib/python3.13/site-packages

# Debian's images name the snapshot of the archive that they are made of: the same base has the same packages forever.
sources=/etc/apt/sources.list.d/debian.sources
if grep -qs '^# http://snapshot' $sources; then
    sed -i '/^URIs:/d; s/^# http/URIs: http/' $sources
fi
dpkg --add-architecture "$arch"
apt-get --quiet=2 -o Acquire::Check-Valid-Until=false update
mkdir /tmp/packages
# shellcheck disable=SC2046,SC2086  # the names have no spaces
(cd /tmp/packages && apt-get --quiet=2 -o APT::Sandbox::User=root download $(printf "%s:$arch " $packages))

# Documents, settings of shells, tests, and what needs more libraries.
cat >/tmp/left-out <<END
./etc/[!do]*
./etc/dpkg
./usr/lib/*/engines-3
./usr/lib/*/gconv
./usr/lib/binfmt.d
./usr/share/[!cd]*
./usr/share/doc/*/[!c]*
./usr/share/doc/*/changelog*
.$library/EXTERNALLY-MANAGED
.$library/_pyrepl
.$library/curses
.$library/dbm
.$library/lib-dynload/*test*
.$library/lib-dynload/_bz2*
.$library/lib-dynload/_codecs_*
.$library/lib-dynload/_curses*
.$library/lib-dynload/_dbm*
.$library/lib-dynload/_lzma*
.$library/lib-dynload/_sqlite3*
.$library/lib-dynload/_uuid*
.$library/lib-dynload/readline*
.$library/pydoc*
.$library/sitecustomize.py
.$library/sqlite3
.$library/test
.$library/unittest
END
records=$root/var/lib/dpkg/status.d
mkdir -p "$records"
for package in /tmp/packages/*.deb; do # base-files first, which has links such as /lib
    name=$(dpkg-deb --field "$package" Package)
    dpkg-deb --fsys-tarfile "$package" | tar --extract --no-same-owner --directory "$root" --exclude-from /tmp/left-out
    dpkg-deb --field "$package" >"$records/$name"
done

mkdir -p "$root$venv/bin"
ln -s /usr/bin/python3.13 "$root$venv/bin/python"
printf 'home = /usr/bin\nversion = 3.13\n' >"$root$venv/pyvenv.cfg"
cat >"$root$venv/bin/aosp-plugin" <<END
#!$venv/bin/python
import sys

from aosp_plugin.__main__ import main

sys.exit(main())
END
chmod 755 "$root$venv/bin/aosp-plugin"
install() { python3 -m pip install --quiet --no-compile --upgrade --target "$root$site_packages" "$@"; }
# The tags of the locked wheels.
install --require-hashes --only-binary=:all: --requirement requirements.txt --python-version 3.13 \
    --platform "manylinux2014_$machine" --platform "manylinux_2_17_$machine" --platform "manylinux_2_28_$machine"
install --no-deps --no-build-isolation .
cd "$root$site_packages"
rm -r bin grpc/_cython/_credentials/roots.pem
find . \( -name '*.py[ixd]' -o -name '*.pxd' -o -name '*.[ch]' -o -name '_testcapi.*' \
    -o -name RECORD -o -name REQUESTED -o -name direct_url.json \) -delete
find . -type f -exec chmod 644 {} +

# The byte code takes the place of the standard library's source. It is written by one process in the order of the names:
# what else is in memory can change its bytes.
compile() { python3 -m compileall -q --invalidation-mode unchecked-hash -s "$root" -p / "$@"; }
compile "$root$site_packages"
compile -b "$root$library"
find "$root$library" -name '*.py' -delete
for package in /tmp/packages/*.deb; do
    dpkg-deb --info "$package" md5sums | while read -r sum path; do
        [ ! -e "$root/$path" ] || echo "$sum  $path"
    done >"$records/$(dpkg-deb --field "$package" Package).md5sums"
done

echo 'root:x:0:0:root:/:/sbin/nologin
nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$root/etc/passwd"
echo 'root:x:0:
nonroot:x:65532:' >"$root/etc/group"
# Without it, the C library asks DNS before /etc/hosts.
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
