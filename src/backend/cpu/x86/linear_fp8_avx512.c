/* linear over FP8 weights with the AVX-512 bf16 dot instruction, which is the contract's step of two inputs.
 *
 * Codes become bf16 in registers: a table of 128 bytes (VBMI) gives the high byte of a code's magnitude, another the low one,
 * denormal codes included, which are normal numbers in bf16; unpacking puts the two together. A chunk of 128 inputs is a chain
 * of 64 dots. With few rows the processor begins the next chunk by itself; two and four side by side were slower with one row
 * (90 and 83 % of what one after the other reads): more streams in memory. Eight rows want sixteen chains, so two chunks.
 * Widening a chunk once for 32 rows, into a buffer, gained nothing over doing it again for each eight. */
#include "backend/cpu/linear_fp8.h"
#include "backend/cpu/x86/lanes_avx512.h"

#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 8")

enum {
    WORDS = FP8_CHUNK / FP8_WORD,
    CHUNK_BYTES = FP8_CHUNK * WEIGHT_PANEL,
    AHEAD = 4096, /* bytes asked for ahead of time; past the end they are nobody's, which is no fault */
    TILE_ROWS = 8,
    MAX_C = 2, /* chunks side by side */
};

/* The two bytes of the bf16 number of a code without its sign: eight codes of an exponent, then those of exponent 0. */
#define HIGH(e) ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2
#define LOW(e) (e) % 2 << 7, (e) % 2 << 7 | 0x10, (e) % 2 << 7 | 0x20, (e) % 2 << 7 | 0x30, (e) % 2 << 7 | 0x40, (e) % 2 << 7 | 0x50, (e) % 2 << 7 | 0x60, (e) % 2 << 7 | 0x70
#define ALL(BYTE) BYTE(1), BYTE(2), BYTE(3), BYTE(4), BYTE(5), BYTE(6), BYTE(7), BYTE(8), BYTE(9), BYTE(10), BYTE(11), BYTE(12), BYTE(13), BYTE(14), BYTE(15)
static const uint8_t high_bytes[128] = { 0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, ALL(HIGH) };
static const uint8_t low_bytes[128] = { 0, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, ALL(LOW) };

typedef struct Tables {
    __m512i high[2], low[2], sign;
} Tables;

static inline Tables load_tables(void)
{
    return (Tables){ { _mm512_loadu_si512(high_bytes), _mm512_loadu_si512(high_bytes + 64) },
                     { _mm512_loadu_si512(low_bytes), _mm512_loadu_si512(low_bytes + 64) },
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

/* Rows of x, from the first input of a chunk on. */
typedef struct Rows {
    const char *x;
    size_t      row_bytes;
} Rows;

ALWAYS_INLINE __m512i two_inputs(const Rows *x, int r, size_t at)
{
    int32_t two;
    memcpy(&two, x->x + (size_t)r * x->row_bytes + at, sizeof two);
    return _mm512_set1_epi32(two);
}

/* R rows of C chunks of n_words words, each added to sums [n_rows][16] of its part. R and C are constants in every use. */
ALWAYS_INLINE void add_chunks(const Fp8Panel *p, const Tables *t, const Rows *x, int64_t chunk, int64_t n_words, int n_rows, float *sums, const int R,
                              const int C)
{
    __m512 partial[TILE_ROWS][MAX_C];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) partial[r][c] = _mm512_setzero_ps();
    const uint8_t *codes = p->codes + chunk * CHUNK_BYTES;
    size_t at = (size_t)chunk * FP8_CHUNK * sizeof(uint16_t);
    for (int64_t i = 0; i < n_words; i++, codes += 64, at += FP8_WORD * sizeof(uint16_t)) {
        __m512i pair[MAX_C][2];
        UNROLL for (int c = 0; c < C; c++) {
            _mm_prefetch((const char *)codes + c * CHUNK_BYTES + AHEAD, _MM_HINT_T0);
            widen(pair[c], codes + c * CHUNK_BYTES, t);
        }
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int c = 0; c < C; c++)
                    partial[r][c] = _mm512_dpbf16_ps(partial[r][c], (__m512bh)two_inputs(x, r, at + c * FP8_CHUNK * sizeof(uint16_t) + 4 * half),
                                                     (__m512bh)pair[c][half]);
    }
    UNROLL for (int c = 0; c < C; c++) {
        __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(p->out_scale), _mm512_set1_ps(p->chunk_scale[chunk + c]));
        float *sum = sums + (chunk + c) / p->chunks_of_part * n_rows * WEIGHT_PANEL;
        UNROLL for (int r = 0; r < R; r++)
            _mm512_storeu_ps(sum + r * WEIGHT_PANEL, _mm512_fmadd_ps(partial[r][c], scale, _mm512_loadu_ps(sum + r * WEIGHT_PANEL)));
    }
}

/* R of n_rows rows, all chunks. */
ALWAYS_INLINE void add_rows(const Fp8Panel *p, const Tables *t, const Rows *x, int n_rows, float *sums, const int R, const int C)
{
    const int64_t whole = p->n_in / FP8_CHUNK;
    int64_t c = 0;
    for (; c + C <= whole; c += C) add_chunks(p, t, x, c, WORDS, n_rows, sums, R, C);
    for (; C > 1 && c < whole; c++) add_chunks(p, t, x, c, WORDS, n_rows, sums, R, 1);
    if (c < p->n_chunks) add_chunks(p, t, x, c, p->n_in % FP8_CHUNK / FP8_WORD, n_rows, sums, R, 1);
}

static void panel(const Fp8Panel *p, Tensor x, int64_t first, int n_rows, float *sums)
{
    const Tables t = load_tables();
    for (int done = 0; done < n_rows;) {
        int left = n_rows - done;
        Rows rows = { (const char *)tensor_bf16(x, first + done), (size_t)x.stride[0] * sizeof(uint16_t) };
        float *to = sums + done * WEIGHT_PANEL;
        if (left >= 8) add_rows(p, &t, &rows, n_rows, to, 8, 2), done += 8;
        else if (left >= 4) add_rows(p, &t, &rows, n_rows, to, 4, 1), done += 4;
        else if (left >= 2) add_rows(p, &t, &rows, n_rows, to, 2, 1), done += 2;
        else add_rows(p, &t, &rows, n_rows, to, 1, 1), done += 1;
    }
}

void cpu_avx512_bf16_linear_fp8(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    linear_fp8_spans(panel, spans, n_spans, x);
}
