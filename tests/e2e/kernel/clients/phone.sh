#!/bin/busybox sh
# phone.sh PREFIX NAME [USER]: the first process of a phone's container. Runs rsb_hub as the service manager of each of the
# phone's three devices, and a service, all as a user of /etc/passwd, by default as the container's own user. PREFIX leads
# from /dev/binderfs to the devices; '-' stands for none.
export PATH=/bin RUST_LOG=error RUST_LOG_STYLE=never
prefix=${1#-} name=$2 user=$3

as_user() {
    if [ -n "$user" ]; then exec busybox su "$user" -c "exec $*"; else exec "$@"; fi
}

for device in binder hwbinder vndbinder; do
    (as_user rsb_hub --insecure-allow-all --device "$prefix$device") 2>&1 &
    manager=$!
    until rsb_service --device "$prefix$device" check manager >/dev/null 2>&1; do
        if ! kill -0 $manager 2>/dev/null; then
            wait $manager
            echo "phone: rsb_hub ended with $?"
            exec busybox sleep 86400
        fi
        busybox usleep 100000
    done
    echo "phone: /dev/$device has a service manager"
done
(as_user tenant_service /dev/binder "$name") 2>&1 &
wait
