/* Rounding rows to bf16 and encoding them as E4M3 in 16 lanes, for round_rows and kv_store. */
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

static uint32_t largest_bits(const float *x, int64_t n)
{
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i += 16) {
        __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes_left(n - i), x + i));
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    return _mm512_reduce_max_epu32(most);
}

/* f32_to_e4m3() of finite numbers. */
static inline __m128i v_to_e4m3(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), magnitude = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __m512 small = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(512.0f)); /* below 2^-6 */
    __m512i steps = _mm512_castps_si512(_mm512_add_ps(small, _mm512_set1_ps(0x1p23f)));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
    __m512i code = _mm512_add_epi32(magnitude, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
    code = _mm512_sub_epi32(_mm512_srli_epi32(code, 20), _mm512_set1_epi32(120 << 3));
    __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x3c800000));
    __mmask16 is_most = _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(0x43e00000));
    code = _mm512_mask_and_epi32(code, is_small, steps, _mm512_set1_epi32(15));
    code = _mm512_mask_mov_epi32(code, is_most, _mm512_set1_epi32(0x7e));
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(u, 24), _mm512_set1_epi32(0x80));
    return _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign));
}

static void encode_values(uint8_t *codes, const float *x, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 valid = lanes_left(n - i);
        __m512 y = _mm512_div_ps(_mm512_maskz_loadu_ps(valid, x + i), _mm512_set1_ps(scale));
        _mm_mask_storeu_epi8(codes + i, valid, v_to_e4m3(y));
    }
}

static const StoreKernels store_kernels = { round_values, largest_bits, encode_values };

static void kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store)
{
    rows_kv_store(st, view, k, v, store, &store_kernels);
}

void cpu_avx512_add_rows(Ops *ops)
{
    ops->round_rows = round_rows;
    ops->kv_store = kv_store;
}
