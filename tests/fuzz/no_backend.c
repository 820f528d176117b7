/* In place of backend and drafters, so that a fuzz target of the server needs no kernels: the parrot of
 * support/fake_stack.h opens a backend and never computes with it. */
#include "backend/backend.h"
#include "speculation/drafter.h"

Status backend_open_cpu(Backend **out, const BackendOptions *options, Error *err)
{
    *out = NULL;
    return OK;
}

void backend_close(Backend *backend)
{
}

const char *backend_name(const Backend *backend)
{
    return "none";
}

const char *backend_variant(const Backend *backend)
{
    return "none";
}

void drafter_close(Drafter *drafter)
{
}
