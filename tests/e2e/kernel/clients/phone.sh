#!/bin/busybox sh
# phone.sh DEVICE NAME [USER]: the first process of a phone's container. Runs rsb_hub as the service manager of a device
# below /dev/binderfs, then the service, both as a user of /etc/passwd, by default as the container's own user.
export PATH=/bin RUST_LOG=error RUST_LOG_STYLE=never
device=$1 name=$2 user=$3

as_user() {
    if [ -n "$user" ]; then exec busybox su "$user" -c "exec $*"; else exec "$@"; fi
}

(as_user rsb_hub --insecure-allow-all --device "$device") 2>&1 &
manager=$!
until rsb_service --device "$device" check manager >/dev/null 2>&1; do
    if ! kill -0 $manager 2>/dev/null; then
        wait $manager
        echo "phone: rsb_hub ended with $?"
        exec busybox sleep 86400
    fi
    busybox usleep 100000
done
echo "phone: the service manager runs"
(as_user tenant_service /dev/binder "$name") 2>&1 &
wait
