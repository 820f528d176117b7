/* Planted faults of the test build; see fault.h. */
#include "backend/fault.h"

typedef int fault_needs_no_code_in_other_builds;

#ifdef TANDEM_FAULTS
#include <stdlib.h>

/* One step away from zero in the bits of a value, of either type. */
static void move_by_one_ulp(Tensor row, int64_t i)
{
    if (row.dtype == DT_F32) {
        uint32_t u;
        float *value = (float *)row.data + i;
        memcpy(&u, value, sizeof u);
        u++;
        memcpy(value, &u, sizeof u);
    } else {
        ((uint16_t *)row.data)[i]++;
    }
}

static float magnitude(Tensor row, int64_t i)
{
    float v = row.dtype == DT_F32 ? ((float *)row.data)[i] : bf16_to_f32(((uint16_t *)row.data)[i]);
    return v < 0 ? -v : v;
}

void fault_point(const char *site, Tensor out, int64_t n_rows)
{
    const char *wanted = getenv("TANDEM_FAULT");
    if (n_rows <= 1 || !wanted || strcmp(wanted, site) != 0) return;

    int last_dim = out.n_dims - 1;
    Tensor row = out; /* of a [rows, heads, dim] output: the first head */
    if (last_dim > 0) {
        row.data = (char *)out.data + (size_t)((n_rows - 1) * out.stride[0]) * dtype_bytes(out.dtype);
    }
    int64_t best = 0;
    for (int64_t i = 1; i < out.shape[last_dim]; i++) {
        if (magnitude(row, i) > magnitude(row, best)) best = i;
    }
    if (magnitude(row, best) > 0) move_by_one_ulp(row, best);
}
#endif
