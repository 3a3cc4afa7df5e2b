#!/bin/busybox sh
# android.sh NAME [32]: the first process of a phone's container. Runs Android's service managers as its init does, and a
# service, binderLibTest's server, under a name that ends with NAME; all as the container's own user. With 32, the service and
# the managers of two devices are 32-bit programs.
export PATH=/bin:/system/bin

keep() {
    "$@" 2>&1
    echo "android: $* ended with $?"
}

keep servicemanager &
keep "/system/bin$2/servicemanager" /dev/hwbinder &
keep "/vendor/bin$2/vndservicemanager" /dev/vndbinder &
keep "/system/bin$2/binderLibTest" --binderserver 0 9 0 "-$1" 9>/dev/null &
wait
exec busybox sleep 86400
