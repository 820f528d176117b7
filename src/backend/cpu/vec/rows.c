/* Rounding rows to bf16 and encoding them as E4M3 in vectors, for round_rows and kv_store. */
#include "backend/cpu/rows.h"
#include "backend/cpu/vec/vec.h"

typedef uint8_t VBytes __attribute__((vector_size(V_LANES))); /* a code a lane */

static void round_values(uint16_t *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += V_LANES) v_put(out, i, v_load_n(x + i, n - i), DT_BF16, n - i);
}

static void round_rows(Stream *st, Tensor out, Tensor x)
{
    rows_round(st, out, x, round_values);
}

static uint32_t largest_bits(const float *x, int64_t n)
{
    VI most = { 0 };
    int32_t lane[V_LANES];
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i += V_LANES) {
        VI bits = (VI)v_bits(v_load_n(x + i, n - i)) & 0x7fffffff, more = bits > most;
        most = (bits & more) | (most & ~more);
    }
    memcpy(lane, &most, sizeof lane);
    for (int i = 0; i < V_LANES; i++) largest = (uint32_t)lane[i] > largest ? (uint32_t)lane[i] : largest;
    return largest;
}

/* f32_to_e4m3() of finite numbers. */
static inline VBytes v_to_e4m3(V x)
{
    VU u = v_bits(x), magnitude = u & 0x7fffffffu, sign = u >> 24 & 0x80;
    VU steps = v_bits((V)magnitude * v_set(512.0f) + v_set(0x1p23f)) & 15; /* below 2^-6 */
    VU code = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
    VU is_small = (VU)((VI)magnitude < 0x3c800000), is_most = (VU)((VI)magnitude >= 0x43e00000);
    code = (steps & is_small) | (code & ~is_small);
    code = (0x7e & is_most) | (code & ~is_most);
    return __builtin_convertvector(__builtin_convertvector(sign | code, VHalf), VBytes); /* in one step it goes lane by lane */
}

static void encode_values(uint8_t *codes, const float *x, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i += V_LANES) {
        VBytes code = v_to_e4m3(v_load_n(x + i, n - i) / v_set(scale));
        memcpy(codes + i, &code, (size_t)(n - i < V_LANES ? n - i : V_LANES));
    }
}

static const StoreKernels store_kernels = { round_values, largest_bits, encode_values };

static void kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store)
{
    rows_kv_store(st, view, k, v, store, &store_kernels);
}

void VEC_NAME(add_rows)(Ops *ops)
{
    ops->round_rows = round_rows;
    ops->kv_store = kv_store;
}
