/* linear over stored blocks in vectors (blocks.h). A panel's 16 outputs are V_PER_16 vectors; a lane is an output, whose
 * four bytes are inputs in a row. Codes are unpacked a word of four inputs at a time, for all rows of a group, whose
 * integer sums stay in registers: v_dot_add() of the instruction set adds four products a lane.
 *
 * Codes stay as stored and their offset is in where a sum starts: -offset times the sum of the inputs. Those of eight bits
 * become signed where products of 255 by 127 would saturate, or there are none of unsigned by signed numbers.
 * Where sums are kept in 16 bits, they move to 32 before they can overflow: after V_DOT_TERMS products of the largest
 * code by 127 for each word. Integer sums are exact, so none of this shows; floats are the contract's, in its order. */
#include "backend/cpu/linear_blocks.h"
#include "backend/cpu/vec/vec.h"
#include VEC_DOT

enum { WORDS = BLOCK / 4, AHEAD = 8192 }; /* bytes that are asked for ahead of time; past the end they are nobody's, which is no fault */

/* What a format is to the code below: constants in every use. */
typedef struct Kind {
    int         high_bits, n_groups, blocks; /* of a unit */
    BlockScales scales;
    bool        has_table;
    int         most; /* the largest code's magnitude */
} Kind;

#define IS_SIGNED(kind) ((kind).most > 63 && !V_DOT_UNSIGNED)

/* ---- codes ---- */

static inline VU load_codes(const uint8_t *at)
{
    VU v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* Word j of 32 inputs, vector v of the panel. */
ALWAYS_INLINE VU word_codes(const Kind kind, const uint8_t *codes, const int j, const int v, VB table)
{
    codes += V_BYTES * v;
    if (kind.high_bits == 4) return load_codes(codes + 64 * j) ^ (IS_SIGNED(kind) ? 0x80808080u : 0);
    VU both = load_codes(codes + 64 * (j / 2)), code = (j & 1 ? both >> 4 : both) & 0x0f0f0f0fu;
    if (kind.has_table) return (VU)v_lookup(table, (VB)code);
    if (kind.high_bits == 1) {
        VU bits = load_codes(codes + 256);
        code |= (j < 4 ? bits << (4 - j) : bits >> (j - 4)) & 0x10101010u;
    }
    if (kind.high_bits == 2) {
        VU bits = load_codes(codes + 256 + 64 * (j / 4));
        const int t = j % 4;
        code |= (t < 2 ? bits << (4 - 2 * t) : bits >> (2 * t - 4)) & 0x30303030u;
    }
    return code;
}

/* The table of the layout, signed where codes are. */
static VB read_table(const Kind kind, const BlockLayout *l)
{
    uint8_t entry[V_BYTES] = { 0 };
    for (int i = 0; kind.has_table && i < V_BYTES; i++) entry[i] = (uint8_t)(l->table[i % 16] - (IS_SIGNED(kind) ? l->offset : 0));
    VB table;
    memcpy(&table, entry, sizeof table);
    return table;
}

/* ---- scales ---- */

/* Half the value of E8M0 codes; those of 0 and 1 are denormals, zero here. */
static inline V e8m0_halves(const uint8_t *at)
{
    VU code = v_load_u8(at), bits = (code - 1) << 23;
    return (V)(bits & (VU)(code > 1));
}

static inline V e4m3_scales(const uint8_t *at, V global)
{
    return 0.5f * (v_load_e4m3(at) * 256.0f * global);
}

static inline V small_scales(const uint8_t *at)
{
    return __builtin_convertvector((VI)v_load_u8(at), V);
}

static inline V small_signed_scales(const uint8_t *at)
{
    return __builtin_convertvector((VI)((v_load_u8(at) ^ 0x80) - 0x80), V);
}

/* Scales and minimums of the outputs of one vector. d and dmin: of a unit with scales of two levels, read once. */
typedef struct Scales {
    V  scale[BLOCK_MAX_GROUPS], min;
    VI zero; /* of each output */
} Scales;

ALWAYS_INLINE Scales read_scales(const Kind kind, const uint8_t *unit, const int v, int k, V d, V dmin, V global)
{
    const uint8_t *half = unit + 2 * V_LANES * v, *byte = unit + V_LANES * v;
    Scales s = { 0 };
    switch (kind.scales) {
    case SCALES_HALF_MIN: s.min = v_load_halves(half + 32); /* fall through */
    case SCALES_HALF: s.scale[0] = v_load_halves(half); break;
    case SCALES_E8M0: s.scale[0] = e8m0_halves(byte); break;
    case SCALES_E4M3:
        s.scale[0] = e4m3_scales(byte, global);
        s.scale[1] = e4m3_scales(byte + 16, global);
        break;
    case SCALES_K:
        s.scale[0] = d * small_scales(byte + 64 + 16 * k);
        s.min = dmin * small_scales(byte + 64 + 128 + 16 * k); /* dmin is -dmin */
        break;
    case SCALES_K6:
        s.scale[0] = d * small_signed_scales(byte + 32 + 32 * k);
        s.scale[1] = d * small_signed_scales(byte + 32 + 32 * k + 16);
        break;
    case SCALES_GROUP:
        memcpy(&s.scale[0], unit + V_BYTES * v, sizeof s.scale[0]);
        s.zero = (VI)v_load_u8(byte + 64);
        break;
    }
    return s;
}

/* ---- sums ---- */

/* Rows of integers of a group: where their next block is. */
typedef struct Inputs {
    const int8_t  *q;
    const float   *scale, *sum;
    const int32_t *group_sum;
    int64_t        n_in;
} Inputs;

static inline VU input_word(const Inputs *x, int r, int j)
{
    uint32_t word;
    memcpy(&word, x->q + r * x->n_in + 4 * j, sizeof word);
    return (VU){ 0 } + word;
}

/* Sums of one group of inputs, words [first, end), for R rows: sum[r] = the integers of sum(q * (code - offset)). */
ALWAYS_INLINE void group_sums(const Kind kind, const int R, const int first, const int end, const uint8_t *codes, VB table, const Inputs *x,
                              VI sum[][V_PER_16])
{
    const int room = V_DOT_TERMS ? 32767 / (127 * kind.most * V_DOT_TERMS + !V_DOT_TERMS) : WORDS; /* words in 16 bits */
    VDot dot[V_DOT_ROWS][V_PER_16];
    UNROLL for (int j = first; j < end; j++) {
        VU code[V_PER_16];
        const bool starts = (j - first) % room == 0, ends = (j - first) % room == room - 1 || j == end - 1;
        UNROLL for (int v = 0; v < V_PER_16; v++) code[v] = word_codes(kind, codes, j, v, table);
        UNROLL for (int r = 0; r < R; r++) {
            VU word = input_word(x, r, j);
            UNROLL for (int v = 0; v < V_PER_16; v++) {
                if (starts) dot[r][v] = v_dot_begin(sum[r][v]);
                dot[r][v] = v_dot_add(dot[r][v], code[v], word, IS_SIGNED(kind));
                if (ends) sum[r][v] = v_dot_end(dot[r][v], sum[r][v]);
            }
        }
    }
}

/* acc += block k of a unit, at `codes`. */
ALWAYS_INLINE void add_block(const Kind kind, const int R, const Scales s[V_PER_16], const uint8_t *codes, VB table, int offset, const Inputs *x,
                             V acc[][V_PER_16])
{
    const int64_t n_blocks = x->n_in / BLOCK;
    UNROLL for (int g = 0; g < kind.n_groups; g++) {
        VI sum[V_DOT_ROWS][V_PER_16];
        UNROLL for (int r = 0; r < R; r++) {
            const int32_t *sums = x->group_sum + 2 * r * n_blocks;
            int32_t sum_x = kind.n_groups == 1 ? sums[0] + sums[1] : sums[g], start = IS_SIGNED(kind) ? 0 : -offset * sum_x;
            UNROLL for (int v = 0; v < V_PER_16; v++) sum[r][v] = kind.scales == SCALES_GROUP ? s[v].zero * -sum_x : (VI){ 0 } + start;
        }
        group_sums(kind, R, g * WORDS / kind.n_groups, (g + 1) * WORDS / kind.n_groups, codes, table, x, sum);
        UNROLL for (int r = 0; r < R; r++) {
            V scale = v_set(x->scale[r * n_blocks]);
            UNROLL for (int v = 0; v < V_PER_16; v++)
                acc[r][v] = v_fma(__builtin_convertvector(sum[r][v], V), s[v].scale[g] * scale, acc[r][v]);
        }
    }
    if (kind.scales != SCALES_HALF_MIN && kind.scales != SCALES_K) return;
    UNROLL for (int r = 0; r < R; r++) {
        V sum = v_set(x->sum[r * n_blocks]);
        UNROLL for (int v = 0; v < V_PER_16; v++) acc[r][v] = v_fma(s[v].min, sum, acc[r][v]);
    }
}

/* Units of a panel for R rows. Everything that is const is a constant in every use. */
ALWAYS_INLINE void panel_rows(const Kind kind, const int R, const Weight *w, const BlockLayout *l, const uint8_t *unit, int64_t n_units, Inputs x,
                              float *out)
{
    const size_t scale_bytes = block_scale_bytes(l), code_bytes = block_code_bytes(l);
    const bool is_two_level = kind.scales == SCALES_K || kind.scales == SCALES_K6;
    const int scale_lines = is_two_level ? 5 : 1;
    const VB table = read_table(kind, l);
    const V global = v_set(w->global);
    V acc[V_DOT_ROWS][V_PER_16] = { 0 };
    for (int64_t u = 0; u < n_units; u++) {
        V d[V_PER_16], dmin[V_PER_16];
        UNROLL for (int v = 0; v < V_PER_16; v++) {
            d[v] = is_two_level ? v_load_halves(unit + 2 * V_LANES * v) : global;
            dmin[v] = kind.scales == SCALES_K ? -v_load_halves(unit + 32 + 2 * V_LANES * v) : global;
        }
        const uint8_t *codes = unit + scale_bytes;
        UNROLL for (int line = 0; line < scale_lines; line++) __builtin_prefetch(unit + AHEAD + 64 * line);
        for (int k = 0; k < kind.blocks; k++, codes += code_bytes) {
            Scales s[V_PER_16];
            UNROLL for (int line = 0; line < 4 + kind.high_bits; line++) __builtin_prefetch(codes + AHEAD + 64 * line);
            UNROLL for (int v = 0; v < V_PER_16; v++) s[v] = read_scales(kind, unit, v, k, d[v], dmin[v], global);
            add_block(kind, R, s, codes, table, l->offset, &x, acc);
            x.q += BLOCK;
            x.scale++;
            x.sum++;
            x.group_sum += 2;
        }
        unit = codes;
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V_PER_16; v++) v_store(out + r * WEIGHT_PANEL + v * V_LANES, acc[r][v]);
}

/* ---- the table ---- */

/* Sizes of row groups: 1, 2, 4, 8 up to V_DOT_ROWS; three rows are two and one. */
ALWAYS_INLINE void panel_any(const Kind kind, const Weight *w, const BlockLayout *l, int64_t panel, int64_t begin, int64_t end, const BlockRows *rows,
                             int64_t first, int n_rows, float *out)
{
    const uint8_t *unit = block_unit_at(w, l, panel, begin);
    for (int done = 0, R; done < n_rows; done += R) {
        int64_t at = (first + done) * (rows->n_in / BLOCK) + begin * kind.blocks, left = n_rows - done;
        Inputs x = { rows->q + at * BLOCK, rows->scale + at, rows->sum + at, rows->group_sum + 2 * at, rows->n_in };
        float *to = out + done * WEIGHT_PANEL;
        if (left >= 8 && V_DOT_ROWS >= 8) panel_rows(kind, R = V_DOT_ROWS >= 8 ? 8 : 1, w, l, unit, end - begin, x, to);
        else if (left >= 4 && V_DOT_ROWS >= 4) panel_rows(kind, R = V_DOT_ROWS >= 4 ? 4 : 1, w, l, unit, end - begin, x, to);
        else if (left >= 2) panel_rows(kind, R = 2, w, l, unit, end - begin, x, to);
        else panel_rows(kind, R = 1, w, l, unit, end - begin, x, to);
    }
}

#define KIND(NAME, ...)                                                                                                                            \
    static void NAME(const Weight *w, const BlockLayout *l, int64_t panel, int64_t begin, int64_t end, const BlockRows *rows, int64_t first,      \
                     int n_rows, float *out)                                                                                                      \
    {                                                                                                                                              \
        panel_any((Kind){ __VA_ARGS__ }, w, l, panel, begin, end, rows, first, n_rows, out);                                                      \
    }
KIND(half_4, 0, 1, 1, SCALES_HALF, false, 15)
KIND(half_table, 0, 1, 1, SCALES_HALF, true, 128)
KIND(half_min_4, 0, 1, 1, SCALES_HALF_MIN, false, 15)
KIND(half_5, 1, 1, 1, SCALES_HALF, false, 31)
KIND(half_min_5, 1, 1, 1, SCALES_HALF_MIN, false, 31)
KIND(half_8, 4, 1, 1, SCALES_HALF, false, 128)
KIND(mxfp4, 0, 1, 1, SCALES_E8M0, true, 24)
KIND(nvfp4, 0, 2, 1, SCALES_E4M3, true, 24)
KIND(k_4, 0, 1, 8, SCALES_K, false, 15)
KIND(k_5, 1, 1, 8, SCALES_K, false, 31)
KIND(k_6, 2, 2, 8, SCALES_K6, false, 63)
KIND(group_4, 0, 1, l->unit / BLOCK, SCALES_GROUP, false, 15)

static const BlocksPanelFn kinds[QUANT_FORMATS] = {
    [QUANT_Q4_0] = half_4,      [QUANT_Q4_1] = half_min_4, [QUANT_Q5_0] = half_5,         [QUANT_Q5_1] = half_min_5, [QUANT_Q8_0] = half_8,
    [QUANT_IQ4_NL] = half_table, [QUANT_MXFP4] = mxfp4,     [QUANT_MXFP4_BLOCKS] = mxfp4, [QUANT_NVFP4] = nvfp4,     [QUANT_NVFP4_BLOCKS] = nvfp4,
    [QUANT_Q4_K] = k_4,         [QUANT_Q5_K] = k_5,        [QUANT_Q6_K] = k_6,           [QUANT_AWQ] = group_4,     [QUANT_GPTQ] = group_4,
    [QUANT_INT4] = group_4,
};

static void any_panel(const Weight *w, const BlockLayout *l, int64_t panel, int64_t begin, int64_t end, const BlockRows *rows, int64_t first,
                      int n_rows, float *out)
{
    kinds[w->contract.format](w, l, panel, begin, end, rows, first, n_rows, out);
}

void VEC_DOT_NAME(linear_blocks)(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    linear_blocks_spans(any_panel, spans, n_spans, x, scratch);
}
