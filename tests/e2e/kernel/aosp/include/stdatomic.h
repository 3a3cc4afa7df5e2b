/* Debian's cutils/atomic.h has the names of C that IMemory.cpp uses; the compiler's stdatomic.h cannot be used beside C++'s. */
#pragma once
#include <cutils/atomic.h>
