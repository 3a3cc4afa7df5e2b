#!/bin/busybox sh
# android.sh NAME: the first process of a phone's container. Runs Android's service managers as its init does, and a service,
# binderLibTest's server, under a name that ends with NAME; all as the container's own user.
export PATH=/bin:/system/bin

keep() {
    "$@" 2>&1
    echo "android: $* ended with $?"
}

keep servicemanager &
keep servicemanager /dev/hwbinder &
keep /vendor/bin/vndservicemanager /dev/vndbinder &
keep binderLibTest --binderserver 0 9 0 "-$1" 9>/dev/null &
wait
exec busybox sleep 86400
