/* Rounding rows to bf16 in 16 lanes, for round_rows and kv_store. */
#include "backend/cpu/rows.h"
#include "backend/cpu/x86/lanes_avx512.h"

static void round_values(uint16_t *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 valid = lanes_left(n - i);
        _mm256_mask_storeu_epi16(out + i, valid, v_to_bf16(_mm512_maskz_loadu_ps(valid, x + i)));
    }
}

static void round_rows(Stream *st, Tensor out, Tensor x)
{
    rows_round(st, out, x, round_values);
}

static void kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store)
{
    rows_kv_store(st, view, k, v, store, round_values);
}

void cpu_avx512_add_rows(Ops *ops)
{
    ops->round_rows = round_rows;
    ops->kv_store = kv_store;
}
