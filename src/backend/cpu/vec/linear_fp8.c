/* linear over FP8 weights in vectors (linear_fp8.h). A lane is an output; a vector of codes becomes two of bf16 pairs, and
 * a pair an even and an odd input in float32, which are taken in the contract's order: the odd one first.
 *
 * A code's bf16 number is put together from bytes. The high one is a lookup by the upper half of the code, the low one is
 * the lower half, moved. That is wrong for 0 and denormal codes, whose bytes are mended by what a lookup by the code has for
 * 0 .. 7: both are normal numbers in bf16. NaN codes do not come here: no tensor with one is loaded.
 *
 * One or two rows widen codes on the way, two chunks side by side where a chunk's sums are too few to keep the
 * multipliers busy. More rows share a chunk that is widened once, to float32 in the first cache. */
#include "backend/cpu/linear_fp8.h"
#include "backend/cpu/vec/vec.h"

enum {
    CHUNK_BYTES = FP8_CHUNK * WEIGHT_PANEL,
    AHEAD = 8192, /* bytes asked for ahead of time, two pairs of chunks; past the end they are nobody's, which is no fault */
    FEW = 2,
    BESIDE = V_PER_16 < 4 ? 2 : 1, /* chunks side by side */
    GROUP = V_LANES == 16 ? 8 : 4, /* rows whose sums and a pair of weights fit the registers */
};

/* ---- codes ---- */

typedef struct Tables {
    VB high;                /* [16] by the upper half of a code */
    VB mend_high, mend_low; /* [16] what differs for the codes below 8 */
} Tables;

static VB repeat_16(const uint8_t entry[16])
{
    uint8_t bytes[V_BYTES];
    for (int i = 0; i < V_BYTES; i++) bytes[i] = entry[i % 16];
    VB v;
    memcpy(&v, bytes, sizeof v);
    return v;
}

/* Code 8e + m is the bf16 number of exponent e + 120 and digits 16m; m of the codes below 8 is m * 2^-9. */
static Tables make_tables(void)
{
    static const uint16_t small[8] = { 0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60 };
    uint8_t high[16], mend_high[16] = { 0 }, mend_low[16] = { 0 };
    for (int i = 0; i < 16; i++) high[i] = (uint8_t)((i & 8) << 4 | (60 + (i & 7)));
    for (int m = 0; m < 8; m++) {
        mend_high[m] = (uint8_t)(small[m] >> 8 ^ high[0]);
        mend_low[m] = (uint8_t)((small[m] & 255) ^ m << 4);
    }
    return (Tables){ repeat_16(high), repeat_16(mend_high), repeat_16(mend_low) };
}

/* Codes of one vector of outputs and four inputs, to inputs 0, 1 and inputs 2, 3. */
ALWAYS_INLINE void widen(VU pair[2], const uint8_t *codes, const Tables *t)
{
    VB code;
    memcpy(&code, codes, sizeof code);
    VB magnitude = code & 0x7f;
    VB high = v_lookup(t->high, (VB)((VU)code >> 4) & 15) ^ v_lookup_first(t->mend_high, magnitude);
    VB low = ((VB)((VU)code << 4) & 0xf0) ^ v_lookup_first(t->mend_low, magnitude);
    pair[0] = (VU)v_zip_low(low, high);
    pair[1] = (VU)v_zip_high(low, high);
}

/* Inputs of a chunk as float32. */
static void widen_inputs(float *to, const uint16_t *x, int n)
{
    int k = 0;
    for (; k + V_LANES <= n; k += V_LANES) v_store(to + k, v_load_bf16(x + k));
    for (; k < n; k++) to[k] = bf16_to_f32(x[k]);
}

/* ---- chunks ---- */

static int inputs_of(const Fp8Panel *p, int64_t chunk)
{
    int64_t left = p->n_in - chunk * FP8_CHUNK;
    return left < FP8_CHUNK ? (int)left : FP8_CHUNK;
}

static float *sums_of(const Fp8Panel *p, float *sums, int n_rows, int64_t chunk)
{
    return sums + chunk / p->chunks_of_part * n_rows * WEIGHT_PANEL;
}

ALWAYS_INLINE void add_scaled(const Fp8Panel *p, int64_t chunk, const V partial[V_PER_16], float *sum)
{
    V scale = v_set(p->chunk_scale[chunk]);
    UNROLL for (int v = 0; v < V_PER_16; v++) {
        const int at = v * V_LANES;
        v_store(sum + at, v_fma(partial[v], v_load(p->out_scale + at) * scale, v_load(sum + at)));
    }
}

/* C chunks of n inputs for R rows, which are all there are; both are constants in every use. */
ALWAYS_INLINE void add_few(const Fp8Panel *p, const Tables *t, Tensor x, int64_t first, int64_t chunk, int n, float *sums, const int R, const int C)
{
    float wide[FEW][BESIDE * FP8_CHUNK];
    V partial[BESIDE][FEW][V_PER_16];
    UNROLL for (int r = 0; r < R; r++) {
        widen_inputs(wide[r], tensor_bf16(x, first + r) + chunk * FP8_CHUNK, C * n);
        UNROLL for (int c = 0; c < C; c++)
            UNROLL for (int v = 0; v < V_PER_16; v++) partial[c][r][v] = v_set(0.0f);
    }
    const uint8_t *codes = p->codes + chunk * CHUNK_BYTES;
    for (int k = 0; k < n; k += FP8_WORD, codes += 64) {
        UNROLL for (int c = 0; c < C; c++) {
            __builtin_prefetch(codes + c * CHUNK_BYTES + AHEAD);
            UNROLL for (int v = 0; v < V_PER_16; v++) {
                VU pair[2];
                widen(pair, codes + c * CHUNK_BYTES + v * V_BYTES, t);
                UNROLL for (int half = 0; half < 2; half++) {
                    V even = (V)(pair[half] << 16), odd = (V)(pair[half] & 0xffff0000u);
                    UNROLL for (int r = 0; r < R; r++) {
                        const float *in = wide[r] + c * FP8_CHUNK + k + 2 * half;
                        partial[c][r][v] = v_fma(v_set(in[0]), even, v_fma(v_set(in[1]), odd, partial[c][r][v]));
                    }
                }
            }
        }
    }
    UNROLL for (int c = 0; c < C; c++)
        UNROLL for (int r = 0; r < R; r++)
            add_scaled(p, chunk + c, partial[c][r], sums_of(p, sums, R, chunk + c) + r * WEIGHT_PANEL);
}

/* A chunk in float32: input k of the 16 outputs at [k]. */
static void widen_chunk(float wide[FP8_CHUNK][WEIGHT_PANEL], const uint8_t *codes, int n, const Tables *t)
{
    for (int k = 0; k < n; k += FP8_WORD, codes += 64) {
        __builtin_prefetch(codes + AHEAD);
        UNROLL for (int v = 0; v < V_PER_16; v++) {
            VU pair[2];
            widen(pair, codes + v * V_BYTES, t);
            UNROLL for (int half = 0; half < 2; half++) {
                v_store(wide[k + 2 * half] + v * V_LANES, (V)(pair[half] << 16));
                v_store(wide[k + 2 * half + 1] + v * V_LANES, (V)(pair[half] & 0xffff0000u));
            }
        }
    }
}

/* R rows of inputs x [R][FP8_CHUNK] times a wide chunk. */
ALWAYS_INLINE void add_wide(const Fp8Panel *p, int64_t chunk, const float w[FP8_CHUNK][WEIGHT_PANEL], const float x[][FP8_CHUNK], int n, float *sums,
                            const int R)
{
    V partial[GROUP][V_PER_16];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V_PER_16; v++) partial[r][v] = v_set(0.0f);
    for (int k = 0; k < n; k += 2) {
        V even[V_PER_16], odd[V_PER_16];
        UNROLL for (int v = 0; v < V_PER_16; v++) {
            even[v] = v_load(w[k] + v * V_LANES);
            odd[v] = v_load(w[k + 1] + v * V_LANES);
        }
        UNROLL for (int r = 0; r < R; r++) {
            V in = v_set(x[r][k + 1]);
            UNROLL for (int v = 0; v < V_PER_16; v++) partial[r][v] = v_fma(in, odd[v], partial[r][v]);
            in = v_set(x[r][k]);
            UNROLL for (int v = 0; v < V_PER_16; v++) partial[r][v] = v_fma(in, even[v], partial[r][v]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) add_scaled(p, chunk, partial[r], sums + r * WEIGHT_PANEL);
}

static void add_many(const Fp8Panel *p, const Tables *t, Tensor x, int64_t first, int n_rows, int64_t chunk, int n, float *sums)
{
    float w[FP8_CHUNK][WEIGHT_PANEL], in[FP8_MAX_ROWS][FP8_CHUNK];
    widen_chunk(w, p->codes + chunk * CHUNK_BYTES, n, t);
    for (int r = 0; r < n_rows; r++) widen_inputs(in[r], tensor_bf16(x, first + r) + chunk * FP8_CHUNK, n);
    for (int done = 0, R; done < n_rows; done += R) {
        const int left = n_rows - done, even = left > 4 ? (left + 1) / 2 : left; /* 5 rows are 3 and 2 */
        float *to = sums_of(p, sums, n_rows, chunk) + done * WEIGHT_PANEL;
        if (left == 8 && GROUP >= 8) add_wide(p, chunk, w, in + done, n, to, R = GROUP >= 8 ? 8 : 1);
        else if (even == 4) add_wide(p, chunk, w, in + done, n, to, R = 4);
        else if (even == 3) add_wide(p, chunk, w, in + done, n, to, R = 3);
        else add_wide(p, chunk, w, in + done, n, to, R = 2);
    }
}

/* ---- panels ---- */

ALWAYS_INLINE void few_rows(const Fp8Panel *p, const Tables *t, Tensor x, int64_t first, float *sums, const int R)
{
    const int64_t whole = p->n_in / FP8_CHUNK;
    int64_t c = 0;
    for (; c + BESIDE <= whole; c += BESIDE) add_few(p, t, x, first, c, FP8_CHUNK, sums, R, BESIDE);
    for (; c < p->n_chunks; c++) add_few(p, t, x, first, c, inputs_of(p, c), sums, R, 1);
}

static void panel(const Fp8Panel *p, Tensor x, int64_t first, int n_rows, float *sums)
{
    const Tables t = make_tables();
    if (n_rows == 1) {
        few_rows(p, &t, x, first, sums, 1);
    } else if (n_rows == 2) {
        few_rows(p, &t, x, first, sums, 2);
    } else {
        for (int64_t c = 0; c < p->n_chunks; c++) add_many(p, &t, x, first, n_rows, c, inputs_of(p, c), sums);
    }
}

void VEC_NAME(linear_fp8)(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    linear_fp8_spans(panel, spans, n_spans, x);
}
