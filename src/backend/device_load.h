/* Finding a device module and taking it in. */
#pragma once

#include "backend/device.h"

/* Looks for tandem_cuda.so: $TANDEM_CUDA_MODULE, beside the program, in ../lib/tandem beside it, in the build tree. */
Status device_load(void **library, const DeviceModule **out, Error *err);
void   device_unload(void *library); /* copes with NULL */
