/* linear over FP8 weights with the AVX-512 bf16 dot instruction, which is the contract's step of two inputs.
 *
 * Codes become bf16 in registers: a table of 128 bytes (VBMI) gives the high byte of a code's magnitude, another the low one,
 * denormal codes included, which are normal numbers in bf16; unpacking puts the two together. A chunk of 128 inputs is a chain
 * of 64 dots; the processor begins the next one by itself. Two and four chunks side by side, for shorter chains, were slower
 * with one row (90 and 83 % of what one after the other reads): more streams in memory. */
#include "backend/cpu/linear_fp8.h"
#include "backend/cpu/x86/lanes_avx512.h"

#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 8")

enum { WORDS = FP8_CHUNK / FP8_WORD, CHUNK_BYTES = FP8_CHUNK * WEIGHT_PANEL, AHEAD = 4096 /* bytes asked for ahead of time; past the end they are nobody's, which is no fault */ };

typedef struct Tables {
    __m512i high[2], low[2], sign;
} Tables;

/* The bf16 number of a code without its sign. */
static uint16_t bf16_of(int code)
{
    int digits = code & 7, exponent = code >> 3;
    if (exponent) return (uint16_t)((exponent + 120) << 7 | digits << 4);
    if (!digits) return 0;
    int top = digits >> 2 ? 2 : digits >> 1; /* digits * 2^-9 */
    return (uint16_t)((118 + top) << 7 | (digits << (7 - top) & 127));
}

/* Made once a call: less than a panel of the smallest matrix. */
static Tables make_tables(void)
{
    uint8_t high[128], low[128];
    for (int code = 0; code < 128; code++) {
        high[code] = (uint8_t)(bf16_of(code) >> 8);
        low[code] = (uint8_t)bf16_of(code);
    }
    return (Tables){ { _mm512_loadu_si512(high), _mm512_loadu_si512(high + 64) },
                     { _mm512_loadu_si512(low), _mm512_loadu_si512(low + 64) },
                     _mm512_set1_epi8((char)0x80) };
}

/* 64 codes to the two operands of 16 outputs: inputs 0, 1 and inputs 2, 3. The lookup ignores the sign. */
ALWAYS_INLINE void widen(__m512i pair[2], const uint8_t *codes, const Tables *t)
{
    __m512i code = _mm512_loadu_si512(codes);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], code, t->high[1]);
    __m512i low = _mm512_permutex2var_epi8(t->low[0], code, t->low[1]);
    high = _mm512_ternarylogic_epi32(high, code, t->sign, 0xf8); /* high | (code & sign) */
    pair[0] = _mm512_unpacklo_epi8(low, high);
    pair[1] = _mm512_unpackhi_epi8(low, high);
}

/* R rows of a chunk of n_words words, added to sums [n_rows][16] of its part. R is a constant in every use. */
ALWAYS_INLINE void add_chunk(const Fp8Panel *p, const Tables *t, const char *x, size_t row_bytes, int64_t chunk, int64_t n_words, float *sums, const int R)
{
    __m512 partial[FP8_MAX_ROWS];
    UNROLL for (int r = 0; r < R; r++) partial[r] = _mm512_setzero_ps();
    const uint8_t *codes = p->codes + chunk * CHUNK_BYTES;
    x += chunk * FP8_CHUNK * 2;
    for (int64_t i = 0; i < n_words; i++, codes += 64, x += 2 * FP8_WORD) {
        __m512i pair[2];
        _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
        widen(pair, codes, t);
        UNROLL for (int half = 0; half < 2; half++) {
            UNROLL for (int r = 0; r < R; r++) {
                int32_t two;
                memcpy(&two, x + (size_t)r * row_bytes + 4 * half, sizeof two);
                partial[r] = _mm512_dpbf16_ps(partial[r], (__m512bh)_mm512_set1_epi32(two), (__m512bh)pair[half]);
            }
        }
    }
    __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(p->out_scale), _mm512_set1_ps(p->chunk_scale[chunk]));
    UNROLL for (int r = 0; r < R; r++) {
        float *at = sums + r * WEIGHT_PANEL;
        _mm512_storeu_ps(at, _mm512_fmadd_ps(partial[r], scale, _mm512_loadu_ps(at)));
    }
}

/* R of n_rows rows, all chunks. */
ALWAYS_INLINE void add_rows(const Fp8Panel *p, const Tables *t, const char *x, size_t row_bytes, int n_rows, float *sums, const int R)
{
    const int64_t whole = p->n_in / FP8_CHUNK;
    for (int64_t c = 0; c < p->n_chunks; c++) {
        int64_t n_words = c < whole ? WORDS : p->n_in % FP8_CHUNK / FP8_WORD;
        add_chunk(p, t, x, row_bytes, c, n_words, sums + c / p->chunks_of_part * n_rows * WEIGHT_PANEL, R);
    }
}

static void panel(const Fp8Panel *p, Tensor x, int64_t first, int n_rows, float *sums)
{
    const Tables t = make_tables();
    const size_t row_bytes = (size_t)x.stride[0] * sizeof(uint16_t);
    for (int done = 0; done < n_rows;) {
        int left = n_rows - done;
        const char *at = (const char *)tensor_bf16(x, first + done);
        float *to = sums + done * WEIGHT_PANEL;
        if (left >= 8) add_rows(p, &t, at, row_bytes, n_rows, to, 8), done += 8;
        else if (left >= 4) add_rows(p, &t, at, row_bytes, n_rows, to, 4), done += 4;
        else if (left >= 2) add_rows(p, &t, at, row_bytes, n_rows, to, 2), done += 2;
        else add_rows(p, &t, at, row_bytes, n_rows, to, 1), done += 1;
    }
}

void fp8_avx512_bf16_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    linear_fp8_spans(panel, spans, n_spans, x);
}
