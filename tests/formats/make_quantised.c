/* make_quantised MODEL_DIR FORMAT OUT: the model with its matrices in a stored format, to run `tandem verify` on.
 *
 *     Q4_0 ... MXFP4, NVFP4      OUT is a .gguf file; every matrix whose rows are whole blocks
 *     fp8-tensor, fp8-channel, fp8-block, nvfp4, nvfp4-ct, mxfp4, awq, gptq, int4, int4-asym
 *                                OUT is a directory; the projections of the layers, as published checkpoints have it
 *
 * The encoders are the plainest there are (support/encode.h): what counts is that the layouts are right. */
#include "base/buf.h"
#include "base/file.h"
#include "base/memory.h"
#include "support/encode.h"
#include "support/gguf_from_model.h"
#include "tensor/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_TENSORS = 2048, GROUP = 64, BLOCK = 128 };

typedef struct Part {
    char  name[160];
    void *data;
} Part;

static SafetensorsEntry entries[MAX_TENSORS];
static const void      *data[MAX_TENSORS];
static Part             part[MAX_TENSORS];
static int              n_parts;

/* A tensor to be written; zeros. */
static void *add(const char *base, const char *suffix, DType dtype, int n_dims, int64_t a, int64_t b)
{
    CHECK(n_parts < MAX_TENSORS);
    Part *p = &part[n_parts];
    SafetensorsEntry *e = &entries[n_parts];
    snprintf(p->name, sizeof p->name, "%s%s", base, suffix);
    *e = (SafetensorsEntry){ .name = p->name, .dtype = dtype, .n_dims = n_dims, .shape = { a, b } };
    e->bytes = (size_t)(n_dims > 0 ? a : 1) * (size_t)(n_dims > 1 ? b : 1) * dtype_bytes(dtype);
    data[n_parts++] = p->data = mem_alloc(e->bytes + 1);
    CHECK(p->data);
    return p->data;
}

static void put_float(const char *base, const char *suffix, float x)
{
    *(float *)add(base, suffix, DT_F32, 0, 0, 0) = x;
}

/* ---- the ways ---- */

typedef struct Matrix {
    const char  *base; /* the name without ".weight" */
    const float *x;    /* [n][k] */
    int64_t      n, k;
} Matrix;

/* One scale for rows x columns of numbers. */
static void fp8(const Matrix *m, int64_t rows, int64_t columns, const char *suffix, int n_dims)
{
    const int64_t across = (m->k + columns - 1) / columns, down = (m->n + rows - 1) / rows;
    uint8_t *codes = add(m->base, ".weight", DT_F8_E4M3, 2, m->n, m->k);
    float *scales = add(m->base, suffix, DT_F32, n_dims, down, across);
    for (int64_t b = 0; b < down * across; b++) {
        const int64_t r0 = b / across * rows, c0 = b % across * columns, width = c0 + columns < m->k ? columns : m->k - c0;
        float amax = 0;
        for (int64_t r = r0; r < r0 + rows && r < m->n; r++) amax = fmaxf(amax, quant_amax(m->x + r * m->k + c0, width));
        scales[b] = fp8_scale(amax);
        for (int64_t r = r0; r < r0 + rows && r < m->n; r++)
            fp8_encode(codes + r * m->k + c0, m->x + r * m->k + c0, width, scales[b]);
    }
}

static void nvfp4(const Matrix *m, bool is_modelopt)
{
    float global = nvfp4_global(quant_amax(m->x, m->n * m->k));
    uint8_t *codes = add(m->base, is_modelopt ? ".weight" : ".weight_packed", DT_U8, 2, m->n, m->k / 2);
    uint8_t *scales = add(m->base, ".weight_scale", DT_F8_E4M3, 2, m->n, m->k / 16);
    if (is_modelopt) put_float(m->base, ".weight_scale_2", global);
    else put_float(m->base, ".weight_global_scale", 1 / global);
    for (int64_t r = 0; r < m->n; r++)
        nvfp4_encode(codes + r * m->k / 2, scales + r * m->k / 16, m->x + r * m->k, m->k, is_modelopt ? global : 1 / (1 / global));
}

static void mxfp4(const Matrix *m)
{
    uint8_t *codes = add(m->base, ".weight_packed", DT_U8, 2, m->n, m->k / 2), one[32];
    uint8_t *scales = add(m->base, ".weight_scale", DT_U8, 2, m->n, m->k / 32);
    for (int64_t b = 0; b < m->n * m->k / 32; b++) {
        scales[b] = encode_mxfp4(one, m->x + 32 * b);
        for (int i = 0; i < 16; i++) codes[16 * b + i] = (uint8_t)(one[2 * i] | one[2 * i + 1] << 4);
    }
}

static void put_nibble(uint32_t *words, int64_t word, int at, uint32_t code)
{
    words[word] |= code << 4 * at;
}

/* AWQ, GPTQ (version 1: zero points less one) and compressed-tensors, by where things go. */
static void affine(const Matrix *m, const char *kind)
{
    static const int awq_place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    const bool awq = strcmp(kind, "awq") == 0, gptq = strcmp(kind, "gptq") == 0, symmetric = strcmp(kind, "int4") == 0;
    const int64_t groups = m->k / GROUP, n = m->n, k = m->k;
    uint32_t *codes = awq    ? add(m->base, ".qweight", DT_I32, 2, k, n / 8)
                      : gptq ? add(m->base, ".qweight", DT_I32, 2, k / 8, n)
                             : add(m->base, ".weight_packed", DT_I32, 2, n, k / 8);
    uint32_t *zeros = awq || gptq ? add(m->base, ".qzeros", DT_I32, 2, groups, n / 8)
                      : symmetric ? NULL
                                  : add(m->base, ".weight_zero_point", DT_I32, 2, n / 8, groups);
    uint16_t *scales = awq || gptq ? add(m->base, ".scales", DT_F16, 2, groups, n) : add(m->base, ".weight_scale", DT_F16, 2, n, groups);
    int32_t *places = gptq ? add(m->base, ".g_idx", DT_I32, 1, k, 0) : NULL;
    for (int64_t i = 0; places && i < k; i++) places[i] = (int32_t)(i / GROUP);
    if (!awq && !gptq) memcpy(add(m->base, ".weight_shape", DT_I64, 1, 2, 0), (int64_t[]){ n, k }, 2 * sizeof(int64_t));
    for (int64_t r = 0; r < n; r++) {
        for (int64_t g = 0; g < groups; g++) {
            uint8_t code[GROUP];
            float scale;
            int zero;
            encode_affine(code, m->x + r * k + g * GROUP, GROUP, &scale, &zero);
            if (symmetric) { /* about 8 */
                scale = f16_to_f32(f32_to_f16(quant_amax(m->x + r * k + g * GROUP, GROUP) / 7 + 0x1p-14f));
                for (int i = 0; i < GROUP; i++) code[i] = (uint8_t)(8 + (int)nearbyintf(m->x[r * k + g * GROUP + i] / scale));
            }
            scales[awq || gptq ? g * n + r : r * groups + g] = f32_to_f16(scale);
            if (awq) put_nibble(zeros, g * (n / 8) + r / 8, awq_place[r % 8], (uint32_t)zero);
            if (gptq) put_nibble(zeros, g * (n / 8) + r / 8, r % 8, (uint32_t)(zero + 15) & 15);
            if (zeros && !awq && !gptq) put_nibble(zeros, r / 8 * groups + g, r % 8, (uint32_t)zero);
            for (int64_t i = g * GROUP, j = 0; j < GROUP; i++, j++) {
                if (awq) put_nibble(codes, i * (n / 8) + r / 8, awq_place[r % 8], code[j]);
                else if (gptq) put_nibble(codes, i / 8 * n + r, (int)(i % 8), code[j]);
                else put_nibble(codes, r * (k / 8) + i / 8, (int)(i % 8), code[j]);
            }
        }
    }
}

/* Inputs that a row must be a multiple of, 0 for an unknown format. */
static int step_of(const char *format)
{
    static const struct {
        const char *format;
        int         step;
    } steps[] = { { "fp8-tensor", 1 }, { "fp8-channel", 1 }, { "fp8-block", 1 }, { "nvfp4", 16 }, { "nvfp4-ct", 16 }, { "mxfp4", 32 },
                  { "awq", GROUP },    { "gptq", GROUP },    { "int4", GROUP },  { "int4-asym", GROUP } };
    for (int i = 0; i < COUNT(steps); i++)
        if (strcmp(format, steps[i].format) == 0) return steps[i].step;
    return 0;
}

static void put_matrix(const Matrix *m, const char *format)
{
    if (strcmp(format, "fp8-tensor") == 0) fp8(m, m->n, m->k, ".weight_scale", 0);
    else if (strcmp(format, "fp8-channel") == 0) fp8(m, 1, m->k, ".weight_scale", 2);
    else if (strcmp(format, "fp8-block") == 0) fp8(m, BLOCK, BLOCK, ".weight_scale_inv", 2);
    else if (strncmp(format, "nvfp4", 5) == 0) nvfp4(m, strcmp(format, "nvfp4") == 0);
    else if (strcmp(format, "mxfp4") == 0) mxfp4(m);
    else affine(m, format);
}

/* A projection of a layer, but for the narrow ones of GDN. */
static bool is_projection(const SafetensorsEntry *e)
{
    const char *at = strstr(e->name, "_proj");
    return e->n_dims == 2 && strstr(e->name, "layers.") && at && !strstr(e->name, "in_proj_a") && !strstr(e->name, "in_proj_b");
}

static void put_tensor(const Safetensors *st, const SafetensorsEntry *e, const char *format)
{
    char base[160];
    Error err = { 0 };
    const size_t n = (size_t)(e->bytes / dtype_bytes(e->dtype));
    if (!is_projection(e) || e->shape[1] % step_of(format) || e->shape[0] % 8) {
        void *room = add(e->name, "", e->dtype, e->n_dims, e->shape[0], e->n_dims > 1 ? (int64_t)(n / (size_t)e->shape[0]) : 0);
        memcpy(entries[n_parts - 1].shape, e->shape, sizeof e->shape);
        CHECK(safetensors_read(st, e, 0, room, e->bytes, &err) == OK);
        return;
    }
    void *room = malloc(e->bytes);
    float *x = malloc(n * sizeof *x);
    CHECK(room && x && safetensors_read(st, e, 0, room, e->bytes, &err) == OK);
    dtype_to_f32(x, room, e->dtype, n);
    snprintf(base, sizeof base, "%.*s", (int)(strlen(e->name) - strlen(".weight")), e->name);
    put_matrix(&(Matrix){ base, x, e->shape[0], e->shape[1] }, format);
    free(x);
    free(room);
}

/* ---- files ---- */

static Status copy(const char *from, const char *to, const char *name, Error *err)
{
    char path[4200], *text = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/%s", from, name);
    if (file_read(path, 64 << 20, &text, &n, err)) return OK; /* not every model has each of them */
    snprintf(path, sizeof path, "%s/%s", to, name);
    Status s = file_write_atomic(path, text, n, err);
    mem_free(text);
    return s;
}

static Status write_parts(const char *dir, const char *format, const char *out, Error *err)
{
    static const char *const names[] = { "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json" };
    char path[4200];
    Safetensors *st;
    Status s = safetensors_open(&st, dir, err);
    for (int i = 0; !s && i < safetensors_count(st); i++) put_tensor(st, safetensors_at(st, i), format);
    mkdir(out, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    if (!s) s = safetensors_write(path, entries, data, n_parts, err);
    for (int i = 0; !s && i < COUNT(names); i++) s = copy(dir, out, names[i], err);
    for (int i = 0; i < n_parts; i++) mem_free(part[i].data);
    safetensors_close(st);
    return s;
}

static QuantFormat blocks_called(const char *name)
{
    for (int f = QUANT_Q4_0; f <= QUANT_NVFP4_BLOCKS; f++)
        if (strncmp(quant_geometry((QuantFormat)f)->name, name, strlen(name)) == 0) return (QuantFormat)f;
    return QUANT_NONE;
}

static Status write_gguf(const char *dir, QuantFormat format, const char *out, Error *err)
{
    Buf file;
    gguf_from_model(&file, dir, format);
    CHECK(!file.failed);
    Status s = file_write_atomic(out, file.data, file.len, err);
    buf_free(&file);
    return s;
}

int main(int argc, char **argv)
{
    Error err = { 0 };
    const size_t n = argc == 4 ? strlen(argv[3]) : 0;
    const bool is_gguf = n > 5 && strcmp(argv[3] + n - 5, ".gguf") == 0;
    const QuantFormat blocks = is_gguf ? blocks_called(argv[2]) : QUANT_NONE;
    if (argc != 4 || (is_gguf ? !blocks : !step_of(argv[2]))) {
        fprintf(stderr, "make_quantised MODEL_DIR FORMAT OUT: see the top of the source\n");
        return 2;
    }
    Status s = is_gguf ? write_gguf(argv[1], blocks, argv[3], &err) : write_parts(argv[1], argv[2], argv[3], &err);
    if (s) fprintf(stderr, "%s\n", err.text);
    return s ? 1 : 0;
}
