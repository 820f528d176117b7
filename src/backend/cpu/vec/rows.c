/* Rounding rows to bf16 in vectors, for round_rows and kv_store. */
#include "backend/cpu/rows.h"
#include "backend/cpu/vec/vec.h"

static void round_values(uint16_t *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += V_LANES) v_put(out, i, v_load_n(x + i, n - i), DT_BF16, n - i);
}

static void round_rows(Stream *st, Tensor out, Tensor x)
{
    rows_round(st, out, x, round_values);
}

static void kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store)
{
    rows_kv_store(st, view, k, v, store, round_values);
}

void VEC_NAME(add_rows)(Ops *ops)
{
    ops->round_rows = round_rows;
    ops->kv_store = kv_store;
}
