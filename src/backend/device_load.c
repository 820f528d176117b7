/* A module is a file beside the program, looked for by path alone: no search path of the system decides what runs. */
#include "backend/device_load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "tandem_cuda.so"
enum { PATH_BYTES = 4096 };

/* The folder of the running program. */
static bool program_folder(char *out)
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_BYTES - 1);
    if (n <= 0) return false;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
    return slash != NULL;
}

/* The first place where the file is. */
static bool find_module(char *out, size_t size)
{
    static const char *const places[] = { MODULE, "../lib/tandem/" MODULE, "src/backend/cuda/" MODULE };
    char folder[PATH_BYTES];
    const char *given = getenv("TANDEM_CUDA_MODULE");
    if (given) return snprintf(out, size, "%s", given) < (int)size;
    if (!program_folder(folder)) return false;
    for (int i = 0; i < COUNT(places); i++)
        if (snprintf(out, size, "%s/%s", folder, places[i]) < (int)size && access(out, R_OK) == 0) return true;
    return false;
}

Status device_load(void **library, const DeviceModule **out, Error *err)
{
    char path[PATH_BYTES];
    if (!find_module(path, sizeof path))
        return error_set_param(err, ERR_UNSUPPORTED, "--device",
                               "--device cuda: there is no " MODULE " beside this program; build it with -Dcuda=enabled");
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*library) return error_set_param(err, ERR_UNSUPPORTED, "--device", "--device cuda: %s", dlerror());
    const DeviceModule *(*module)(void);
    *(void **)&module = dlsym(*library, "tandem_device_module");
    if (!module || module()->abi != DEVICE_ABI)
        return error_set_param(err, ERR_UNSUPPORTED, "--device", "--device cuda: %s belongs to another version of this program", path);
    *out = module();
    return OK;
}

void device_unload(void *library)
{
    if (library) dlclose(library);
}
