/* Weights in the layout that the kernels read, converted while they are loaded.
 *
 * A panel holds 16 output rows. In both types a panel is a matrix of 32-bit words turned on its side: a
 * word is one float32 input, or a pair of bf16 inputs of one row.
 *
 *     source row n:   word 0, word 1, word 2 ...            panel:  word 0 of rows 0 .. 15
 *                                                                   word 1 of rows 0 .. 15 ...
 *
 * Whole panels of the weight's own type, the common case, go through a 4 x 4 transpose in 128-bit vectors
 * that every machine has; loading is then bound by memory. Other sources are converted in small pieces
 * first. A row count that does not end on a panel writes single rows. */
#include "backend/backend.h"

#include "backend/cpu/blocks.h"
#include "backend/cpu/first_touch.h"
#include "backend/cpu/linear_fp8.h"
#include "backend/cpu/processors.h"
#include "backend/device.h"
#include "base/memory.h"

enum { PIECE_WORDS = 64 };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t words_of(const Weight *w)
{
    return w->contract.mode == MATH_BF16 ? (w->n_in + 1) / 2 : w->n_in;
}

bool weight_takes_blocks(const QuantMatrix *stored)
{
    if (stored->format == QUANT_FP8) return fp8_takes(stored);
    return stored->n_in > 0 && block_layout_for(stored->format, stored->group_in, stored->n_in) != NULL;
}

Contract weight_blocks_contract(const QuantMatrix *stored, int row_parallel)
{
    CHECK(weight_takes_blocks(stored));
    int64_t unit = stored->format == QUANT_FP8 ? FP8_CHUNK : block_layout_for(stored->format, stored->group_in, stored->n_in)->unit;
    return contract_for_blocks(stored->format, unit, stored->n_in, row_parallel);
}

void weight_put_blocks(Weight *w, int64_t first, const QuantMatrix *part)
{
    if (part->format == QUANT_FP8) fp8_put_rows(w, first, part);
    else if (quant_geometry(part->format)->in_rows) blocks_put_rows(w, first, part);
    else blocks_put_inputs(w, first, part);
}

size_t weight_bytes(int64_t n_out, int64_t n_in, const Contract *c)
{
    if (c->mode == MATH_W8A16) return (size_t)(round_up(n_out, WEIGHT_PANEL) / WEIGHT_PANEL) * fp8_panel_bytes(n_in);
    if (c->mode == MATH_INT8_BLOCK) {
        const BlockLayout *l = block_layout_for(c->format, c->k_chunk, n_in);
        return (size_t)round_up(n_out, WEIGHT_PANEL) / WEIGHT_PANEL * (size_t)(n_in / l->unit) * block_unit_bytes(l);
    }
    Weight w = { NULL, n_out, n_in, *c };
    return (size_t)round_up(n_out, WEIGHT_PANEL) * (size_t)words_of(&w) * sizeof(uint32_t);
}

Status weight_alloc(Backend *b, Weight *w, int64_t n_out, int64_t n_in, Contract c, Error *err)
{
    Device *device;
    const DeviceModule *module = backend_module(b, &device);
    *w = (Weight){ NULL, n_out, n_in, c, .global = 1 };
    const bool is_plain = c.mode == MATH_BF16 || c.mode == MATH_F32, is_stored = c.mode == MATH_INT8_BLOCK || c.mode == MATH_W8A16;
    if (!is_plain && (module || !is_stored))
        return error_set(err, ERR_UNSUPPORTED, "this version computes with %s weights only", module ? "bf16 and float32" : "bf16, float32, FP8 and block");
    size_t bytes = weight_bytes(n_out, n_in, &c);
    if (module) {
        w->device = b;
        w->contract = module->contract(c, n_in);
        bytes = module->weight_bytes(n_out, n_in, &w->contract);
    }
    w->data = backend_alloc_device(b, bytes);
    if (!w->data)
        return error_set(err, ERR_NOMEM, "no memory for a weight of %lld x %lld (%zu bytes)", (long long)n_out,
                         (long long)n_in, bytes);
    if (!module && memory_has_nodes()) first_touch_weight(b, w);
    return OK;
}

/* ---- one row of words out of a stored type ---- */

/* Words [first, first + n) of row `row`, which begins at src. */
static void read_words(uint32_t *out, const Weight *w, const void *src, DType source, int64_t first, int64_t n)
{
    if (w->contract.mode == MATH_F32) {
        dtype_to_f32((float *)out, (const char *)src + (size_t)first * dtype_bytes(source), source, (size_t)n);
        return;
    }
    int64_t k = 2 * first, n_k = w->n_in - k < 2 * n ? w->n_in - k : 2 * n; /* the last word may hold one input */
    const char *at = (const char *)src + (size_t)k * dtype_bytes(source);
    uint16_t *half = (uint16_t *)out;
    half[2 * n - 1] = 0;
    if (source == DT_BF16) {
        memcpy(half, at, (size_t)n_k * sizeof *half);
        return;
    }
    float wide[2 * PIECE_WORDS];
    dtype_to_f32(wide, at, source, (size_t)n_k);
    for (int64_t i = 0; i < n_k; i++) half[i] = f32_to_bf16(wide[i]);
}

static void put_one_row(Weight *w, int64_t row, const void *src, DType source)
{
    uint32_t piece[PIECE_WORDS];
    int64_t n_words = words_of(w);
    uint32_t *panel = (uint32_t *)w->data + row / WEIGHT_PANEL * n_words * WEIGHT_PANEL + row % WEIGHT_PANEL;
    for (int64_t first = 0; first < n_words; first += PIECE_WORDS) {
        int64_t n = n_words - first < PIECE_WORDS ? n_words - first : PIECE_WORDS;
        read_words(piece, w, src, source, first, n);
        for (int64_t i = 0; i < n; i++) panel[(first + i) * WEIGHT_PANEL] = piece[i];
    }
}

/* ---- whole panels ---- */

typedef uint32_t Words4 __attribute__((vector_size(16)));

static inline Words4 load4(const char *p)
{
    Words4 v;
    memcpy(&v, p, sizeof v); /* a row of odd length leaves the next one unaligned */
    return v;
}

/* Four words of four rows into four words' places of the panel. */
static inline void transpose4(uint32_t *panel, const char *row0, size_t row_bytes)
{
    Words4 a = load4(row0), b = load4(row0 + row_bytes), c = load4(row0 + 2 * row_bytes),
           d = load4(row0 + 3 * row_bytes);
    Words4 ab_low = __builtin_shuffle(a, b, (Words4){ 0, 4, 1, 5 });
    Words4 ab_high = __builtin_shuffle(a, b, (Words4){ 2, 6, 3, 7 });
    Words4 cd_low = __builtin_shuffle(c, d, (Words4){ 0, 4, 1, 5 });
    Words4 cd_high = __builtin_shuffle(c, d, (Words4){ 2, 6, 3, 7 });
    *(Words4 *)(panel) = __builtin_shuffle(ab_low, cd_low, (Words4){ 0, 1, 4, 5 });
    *(Words4 *)(panel + WEIGHT_PANEL) = __builtin_shuffle(ab_low, cd_low, (Words4){ 2, 3, 6, 7 });
    *(Words4 *)(panel + 2 * WEIGHT_PANEL) = __builtin_shuffle(ab_high, cd_high, (Words4){ 0, 1, 4, 5 });
    *(Words4 *)(panel + 3 * WEIGHT_PANEL) = __builtin_shuffle(ab_high, cd_high, (Words4){ 2, 3, 6, 7 });
}

/* Words [0, n_words) of 16 rows, row_bytes apart; n_words a multiple of 4. */
static void transpose_panel(uint32_t *panel, const char *rows, size_t row_bytes, int64_t n_words)
{
    for (int64_t i = 0; i < n_words; i += 4) {
        for (int n = 0; n < WEIGHT_PANEL; n += 4) {
            transpose4(panel + i * WEIGHT_PANEL + n, rows + (size_t)n * row_bytes + i * sizeof(uint32_t), row_bytes);
        }
    }
}

static void put_panel(Weight *w, int64_t row, const char *rows, DType source)
{
    size_t row_bytes = (size_t)w->n_in * dtype_bytes(source);
    int64_t n_words = words_of(w), done = 0;
    uint32_t *panel = (uint32_t *)w->data + row * n_words;
    if (source == w->contract.in) {
        int64_t whole_words = (int64_t)(row_bytes / sizeof(uint32_t));
        done = whole_words / 4 * 4;
        transpose_panel(panel, rows, row_bytes, done);
    }
    uint32_t piece[WEIGHT_PANEL][PIECE_WORDS];
    for (; done < n_words; done += PIECE_WORDS) {
        int64_t n = n_words - done < PIECE_WORDS ? n_words - done : PIECE_WORDS, whole = n / 4 * 4;
        for (int r = 0; r < WEIGHT_PANEL; r++) read_words(piece[r], w, rows + (size_t)r * row_bytes, source, done, n);
        uint32_t *to = panel + done * WEIGHT_PANEL;
        transpose_panel(to, (const char *)piece, sizeof piece[0], whole);
        for (int64_t i = whole; i < n; i++) {
            for (int r = 0; r < WEIGHT_PANEL; r++) to[i * WEIGHT_PANEL + r] = piece[r][i];
        }
    }
}

/* A device takes rows of the contract's type: converts others a few at a time. */
static void put_device_rows(const Weight *w, int64_t first, int64_t n, const void *rows, DType source)
{
    Device *device;
    const DeviceModule *module = backend_module(w->device, &device);
    if (source == w->contract.in) {
        module->put_rows(device, w, first, n, rows);
        return;
    }
    int64_t n_words = words_of(w);
    size_t row_bytes = (size_t)w->n_in * dtype_bytes(w->contract.in);
    char *row = mem_alloc((size_t)n_words * sizeof(uint32_t)); /* while loading only */
    CHECK(row);
    for (int64_t r = 0; r < n; r++) {
        const char *src = (const char *)rows + (size_t)(r * w->n_in) * dtype_bytes(source);
        for (int64_t at = 0; at < n_words; at += PIECE_WORDS) {
            uint32_t piece[PIECE_WORDS];
            int64_t take = n_words - at < PIECE_WORDS ? n_words - at : PIECE_WORDS;
            read_words(piece, w, src, source, at, take);
            size_t left = row_bytes - (size_t)at * sizeof(uint32_t), bytes = (size_t)take * sizeof(uint32_t);
            memcpy(row + (size_t)at * sizeof(uint32_t), piece, bytes < left ? bytes : left);
        }
        module->put_rows(device, w, first + r, 1, row);
    }
    mem_free(row);
}

void weight_put_rows(Weight *w, int64_t first, int64_t n, const void *rows, DType source)
{
    CHECK(first >= 0 && n >= 0 && first + n <= w->n_out);
    CHECK(source == DT_F32 || source == DT_BF16 || source == DT_F16);
    if (w->device) {
        put_device_rows(w, first, n, rows, source);
        return;
    }
    size_t row_bytes = (size_t)w->n_in * dtype_bytes(source);
    const char *src = rows;
    for (int64_t row = first, end = first + n; row < end;) {
        int64_t step = 1;
        if (row % WEIGHT_PANEL == 0 && end - row >= WEIGHT_PANEL) {
            step = WEIGHT_PANEL;
            put_panel(w, row, src, source);
        } else {
            put_one_row(w, row, src, source);
        }
        row += step;
        src += (size_t)step * row_bytes;
    }
}

void weight_get_row(const Weight *w, int64_t row, float *out)
{
    if (contract_is_stored(&w->contract)) {
        if (w->contract.mode == MATH_W8A16) fp8_get_row(w, row, out);
        else blocks_get_row(w, row, out);
        return;
    }
    if (w->device) {
        Device *device;
        const DeviceModule *module = backend_module(w->device, &device);
        module->get_row(device, w, row, out);
        return;
    }
    const uint32_t *panel =
        (const uint32_t *)w->data + row / WEIGHT_PANEL * words_of(w) * WEIGHT_PANEL + row % WEIGHT_PANEL;
    for (int64_t k = 0; k < w->n_in; k++) {
        if (w->contract.mode == MATH_F32) {
            memcpy(&out[k], &panel[k * WEIGHT_PANEL], sizeof *out);
        } else {
            uint32_t word = panel[k / 2 * WEIGHT_PANEL];
            uint32_t bits = k % 2 ? word & 0xffff0000u : word << 16; /* little-endian pairs, as loaded */
            memcpy(&out[k], &bits, sizeof bits);
        }
    }
}
