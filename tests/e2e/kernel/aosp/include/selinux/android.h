/* Android's additions to libselinux, none of which is used outside Android. */
#pragma once
#include <selinux/selinux.h>
