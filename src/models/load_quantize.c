/* --quantization: plain numbers are rounded to FP8 or NVFP4 on their way into place, a few rows at a time.
 *
 *     checkpoint --> rows as they are stored --> float32, one row --> codes, scales --> as if they had been stored so
 *
 * From the codes on it is the way of a quantised checkpoint, so all bits, and the fingerprint, are those of loading one that
 * holds what the encoders of tensor/quant.h make. FP8 has a scale for each output and needs nothing but the row. NVFP4 has a
 * number for the whole tensor, its largest magnitude: a task is a whole tensor there, and reads it twice. Keeping it in
 * between would be a second copy of the largest tensor, for every lane. */
#include "models/load_impl.h"

#include <inttypes.h>
#include <math.h>

enum { PIECE_BYTES = 1 << 20 };

/* Where things are in staging. */
typedef struct Room {
    char    *plain, *codes, *scales;
    float   *row;     /* a row of float32; in a float32 model all rows of a piece, as they come back from their codes */
    int64_t  n_piece; /* rows of a piece: whole panels */
    size_t   code_bytes, scale_bytes, bytes; /* of a row; of everything */
} Room;

/* The task of n of its rows before they are rounded. */
static LoadTask plain_task(const LoadTask *t, int64_t first, int64_t n)
{
    LoadTask p = *t;
    p.source = t->plain;
    p.first = first;
    p.n = n;
    return p;
}

static Room room_of(const LoadTask *t, char *staging)
{
    const int64_t n_in = t->item->shape[1];
    Room r = { .plain = staging };
    r.n_piece = PIECE_BYTES / (int64_t)t->row_bytes / WEIGHT_PANEL * WEIGHT_PANEL;
    if (r.n_piece < WEIGHT_PANEL) r.n_piece = WEIGHT_PANEL;
    r.code_bytes = quant_row_bytes(t->item->quantize, n_in);
    r.scale_bytes = t->item->quantize == QUANT_FP8 ? sizeof(float) : (size_t)n_in / 16;
    LoadTask piece = plain_task(t, 0, r.n_piece);
    r.bytes = data_file_whole_pages(load_task_room(&piece));
    r.codes = staging + r.bytes;
    r.bytes += data_file_whole_pages((size_t)r.n_piece * r.code_bytes);
    r.scales = staging + r.bytes;
    r.bytes += data_file_whole_pages((size_t)r.n_piece * r.scale_bytes);
    r.row = (float *)(void *)(staging + r.bytes);
    r.bytes += (size_t)(t->item->contract.mode == MATH_F32 ? r.n_piece : 1) * (size_t)n_in * sizeof *r.row;
    return r;
}

int64_t load_quantize_rows(const LoadTask *t)
{
    if (t->item->quantize == QUANT_NVFP4) return t->n;
    LoadTask plain = plain_task(t, 0, t->n);
    return load_task_rows(&plain);
}

size_t load_quantize_room(const LoadTask *t)
{
    return room_of(t, NULL).bytes;
}

/* ---- one piece ---- */

/* The largest magnitude of a row; an error when it holds something that no format can. */
static Status amax_of(const LoadTask *t, int64_t row, const float *x, float *amax, Error *err)
{
    const int64_t n = t->item->shape[1];
    *amax = quant_amax(x, n);
    for (int64_t i = 0; !isfinite(*amax) && i < n; i++)
        if (!isfinite(x[i]))
            return error_set(err, ERR_INPUT, "tensor %s holds %g at row %" PRId64 ", column %" PRId64, t->item->name, (double)x[i],
                             row, i);
    return OK;
}

static void widen(const LoadTask *t, const LoadStaged *staged, int64_t row, float *out)
{
    dtype_to_f32(out, staged->rows + (size_t)row * t->row_bytes, t->dtype, (size_t)t->item->shape[1]);
}

/* The largest magnitude of the whole tensor. */
static Status find_amax(const LoadContext *c, const LoadTask *t, const Room *r, float *amax, Error *err)
{
    Status s = OK;
    *amax = 0;
    for (int64_t at = 0; !s && at < t->n; at += r->n_piece) {
        LoadStaged staged;
        LoadTask p = plain_task(t, t->first + at, t->n - at < r->n_piece ? t->n - at : r->n_piece);
        s = load_task_read(c, &p, r->plain, &staged, err);
        for (int64_t i = 0; !s && i < p.n; i++) {
            float own = 0;
            widen(t, &staged, i, r->row);
            s = amax_of(t, p.first + i, r->row, &own, err);
            if (!s && own > *amax) *amax = own;
        }
    }
    return s;
}

static Status encode_row(const LoadTask *t, const Room *r, int64_t row, int64_t at, float global, Error *err)
{
    const int64_t n_in = t->item->shape[1];
    uint8_t *codes = (uint8_t *)r->codes + (size_t)at * r->code_bytes;
    char *scales = r->scales + (size_t)at * r->scale_bytes;
    if (t->item->quantize == QUANT_NVFP4) {
        nvfp4_encode(codes, (uint8_t *)scales, r->row, n_in, global);
        return OK;
    }
    float amax = 0;
    Status s = amax_of(t, row, r->row, &amax, err);
    if (s) return s;
    const float scale = fp8_scale(amax);
    memcpy(scales, &scale, sizeof scale);
    fp8_encode(codes, r->row, n_in, scale);
    return OK;
}

/* The rows of p, encoded in r, on the way of a checkpoint that stores them so. */
static Status put_encoded(LoadTask *t, const LoadTask *p, const Room *r, const QuantMatrix *m, Error *err)
{
    const size_t n = (size_t)p->n;
    LoadTask q = *p;
    Status s = OK;
    q.hash = 0;
    if (t->item->contract.mode == MATH_F32) {
        q.dtype = DT_F32;
        q.row_bytes = (size_t)m->n_in * sizeof(float);
        for (int64_t i = 0; i < p->n; i++) quant_decode_row(m, i, r->row + i * m->n_in);
        load_put_matrix(&q, (const char *)r->row);
    } else {
        CheckpointBand band = { .stored = *m, .code_bytes = n * r->code_bytes, .scale_bytes = n * r->scale_bytes };
        s = load_put_stored(&q, &band, err);
    }
    t->hash += q.hash;
    return s;
}

static Status run_piece(const LoadContext *c, LoadTask *t, const Room *r, int64_t at, float global, Error *err)
{
    LoadStaged staged;
    LoadTask p = plain_task(t, t->first + at, t->n - at < r->n_piece ? t->n - at : r->n_piece);
    Status s = load_task_read(c, &p, r->plain, &staged, err);
    for (int64_t i = 0; !s && i < p.n; i++) {
        widen(t, &staged, i, r->row);
        s = encode_row(t, r, p.first + i, i, global, err);
    }
    if (s) return s;
    QuantMatrix m = weights_quantized(t->item->quantize, p.n, t->item->shape[1]);
    m.codes = r->codes;
    m.scales = r->scales;
    m.global = global;
    return put_encoded(t, &p, r, &m, err);
}

Status load_quantize_put(const LoadContext *c, LoadTask *t, char *staging, Error *err)
{
    const Room r = room_of(t, staging);
    float amax = 0, global = 1;
    Status s = OK;
    if (t->item->quantize == QUANT_NVFP4) {
        s = find_amax(c, t, &r, &amax, err);
        global = nvfp4_global(amax);
        if (t->item->contract.mode != MATH_F32) t->item->matrix->global = global;
    }
    for (int64_t at = 0; !s && at < t->n; at += r.n_piece) s = run_piece(c, t, &r, at, global, err);
    return s;
}
