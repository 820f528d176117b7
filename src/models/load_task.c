/* Loading some rows of one tensor: from the checkpoint into staging, from there into their final place.
 *
 *     checkpoint --past the page cache--> staging --hash, check, repack panel by panel--> weight
 *
 * A tensor's hash is the sum of the hashes of its panels (16 rows) with the scales of their rows, each seeded by its place, and
 * of scales that several rows share, by tasks, whose cut is the tensor's. A panel is repacked right after it was hashed, out of the processor's cache. */
#include "models/load_impl.h"

#include "base/fmath.h"
#include "base/memory.h"

#include <xxhash.h>

enum { LOAD_CHUNK_BYTES = (4 << 20) - 8 * DATA_FILE_PAGE }; /* with what stands around its parts, two huge pages */

int64_t weight_item_count(const WeightItem *item)
{
    int64_t n = 1;
    for (int i = 0; i < item->n_dims; i++) n *= item->shape[i];
    return n;
}

/* ---- what is to be done ---- */

static DType plain_dtype(QuantFormat f)
{
    return f == QUANT_F32 ? DT_F32 : f == QUANT_F16 ? DT_F16 : DT_BF16;
}

static LoadSource source_of(const WeightItem *item, const CheckpointTensor *t)
{
    if (!t) return item->matrix && contract_is_stored(&item->contract) && !item->quantize ? LOAD_DUMMY_STORED : LOAD_DUMMY_ROWS;
    if (item->matrix && item->contract.format != QUANT_NONE && !item->quantize) return LOAD_STORED;
    return quant_is_plain(t->stored.format) && !t->columns.a && (item->matrix || !t->rows.a) ? LOAD_ROWS : LOAD_DECODED;
}

LoadTask load_task_of(const WeightItem *item, const Checkpoint *file)
{
    LoadTask t = { .item = item, .tensor = file ? checkpoint_find(file, item->name) : NULL };
    t.source = source_of(item, t.tensor);
    t.dtype = t.source == LOAD_DUMMY_ROWS ? DT_BF16 : t.source == LOAD_ROWS ? plain_dtype(t.tensor->stored.format) : DT_F32;
    t.n = item->matrix ? item->shape[0] : 1;
    t.row_bytes = (size_t)(weight_item_count(item) / t.n) * dtype_bytes(t.dtype);
    if (t.source == LOAD_STORED) t.n = checkpoint_bands_of(t.tensor);
    if (t.source == LOAD_DUMMY_STORED && !quant_geometry(item->contract.format)->in_rows) t.n = item->shape[1];
    t.plain = t.source;
    if (item->quantize) t.source = LOAD_QUANTIZED;
    return t;
}

/* The largest multiple of `of` up to n, but at least one. */
static int64_t whole(int64_t n, int64_t of)
{
    return n < of ? of : n / of * of;
}

/* Whole panels, since two threads must not write into one; of a format whose inputs are outermost, whole units of inputs, or
 * all where they are decoded. Turned rows take three times their room, and come in whole heads where those are small. */
int64_t load_task_rows(const LoadTask *t)
{
    if (t->source == LOAD_QUANTIZED) return load_quantize_rows(t);
    if (t->source == LOAD_DUMMY_STORED) return load_dummy_band(t, LOAD_CHUNK_BYTES);
    const CheckpointOrder *turned = t->tensor && t->tensor->rows.a ? &t->tensor->rows : NULL;
    const size_t chunk = LOAD_CHUNK_BYTES / (turned ? 4 : 1);
    const int64_t heads = turned ? turned->a * turned->b * turned->unit : 1;
    if (t->source == LOAD_DECODED && !quant_geometry(t->tensor->stored.format)->in_rows) return t->n;
    int64_t rows = t->source == LOAD_STORED ? checkpoint_band(t->tensor, chunk) : whole((int64_t)(chunk / t->row_bytes), WEIGHT_PANEL);
    if (heads % WEIGHT_PANEL == 0 && heads <= rows) rows = whole(rows, heads);
    return rows;
}

/* Rows of the checkpoint's tensor that the task's are: a vector there may have several dimensions. */
static int64_t stored_rows(const LoadTask *t)
{
    return t->item->matrix ? t->n : t->tensor->stored.n_out;
}

size_t load_task_bytes(const LoadTask *t)
{
    if (t->source == LOAD_DUMMY_STORED) return load_dummy_room(t);
    return t->source == LOAD_STORED ? checkpoint_band_bytes(t->tensor, t->n) : (size_t)t->n * t->row_bytes;
}

size_t load_task_room(const LoadTask *t)
{
    if (t->source == LOAD_QUANTIZED) return load_quantize_room(t);
    if (t->source == LOAD_STORED) return checkpoint_band_room(t->tensor, t->n);
    if (t->source == LOAD_DUMMY_STORED) return load_dummy_room(t);
    if (t->source == LOAD_ROWS) return checkpoint_stage_rows_room(t->tensor, stored_rows(t));
    return (size_t)t->n * t->row_bytes;
}

/* ---- reading ---- */

Status load_task_read(const LoadContext *c, const LoadTask *t, void *staging, LoadStaged *out, Error *err)
{
    void *at = staging;
    Status s = OK;
    out->staging = staging;
    switch (t->source) {
    case LOAD_STORED: return checkpoint_stage_band(c->file, t->tensor, t->first, t->n, staging, &out->stored, err);
    case LOAD_ROWS: s = checkpoint_stage_rows(c->file, t->tensor, t->first, stored_rows(t), staging, &at, err); break;
    case LOAD_DECODED: s = checkpoint_decode_rows(c->file, t->tensor, t->first, stored_rows(t), staging, err); break;
    case LOAD_QUANTIZED: break; /* it reads piece by piece */
    case LOAD_DUMMY_STORED: load_dummy_stored(c, t, staging, &out->stored); return OK;
    default: load_dummy_rows(c, t, staging);
    }
    out->rows = at;
    return s;
}

/* ---- putting into place ---- */

static Status finish_vector(const WeightItem *item, float *values, bool is_final, Error *err)
{
    for (int64_t i = 0, n = weight_item_count(item); i < n; i++) {
        float stored = values[i];
        if (item->use == VECTOR_NORM_PLUS_ONE && !is_final) values[i] = 1.0f + stored;
        if (item->use == VECTOR_NEG_EXP && !is_final) values[i] = -f_exp(stored);
        if (!isfinite(stored) || !isfinite(values[i]))
            return error_set(err, ERR_INPUT, "tensor %s holds %g at index %lld, which leaves no finite weight",
                             item->name, stored, (long long)i);
    }
    return OK;
}

/* Through memory of its own: its place may be on a device. */
static Status store_vector(Backend *backend, const LoadTask *t, const void *source, Error *err)
{
    const WeightItem *item = t->item;
    size_t n = (size_t)weight_item_count(item);
    float *values = mem_alloc_array(n, sizeof *values);
    if (!values) return error_set(err, ERR_NOMEM, "no memory to load tensor %s", item->name);
    dtype_to_f32(values, source, t->dtype, n);
    Status s = finish_vector(item, values, t->tensor && t->tensor->is_final, err);
    if (!s) backend_upload(backend, *item->vector, values, n * sizeof *values);
    mem_free(values);
    return s;
}

static void put_rows(const LoadTask *t, const char *rows, int64_t at, int64_t n)
{
    weight_put_rows(t->item->matrix, t->first + at, n, rows + (size_t)at * t->row_bytes, t->dtype);
}

static uint64_t hash_of(const LoadTask *t, const void *bytes, size_t n, int64_t at)
{
    return XXH3_64bits_withSeed(bytes, n, (uint64_t)(t->first + at));
}

/* Panel by panel; a device takes them together, because every piece costs a wait. */
void load_put_matrix(LoadTask *t, const char *rows)
{
    const bool is_device = t->item->matrix->device != NULL;
    for (int64_t at = 0; at < t->n; at += WEIGHT_PANEL) {
        int64_t n = t->n - at < WEIGHT_PANEL ? t->n - at : WEIGHT_PANEL;
        t->hash += hash_of(t, rows + (size_t)at * t->row_bytes, (size_t)n * t->row_bytes, at);
        if (!is_device) put_rows(t, rows, at, n);
    }
    if (is_device) put_rows(t, rows, 0, t->n);
}

/* Rows panel by panel, too; inputs all at once. */
Status load_put_stored(LoadTask *t, const CheckpointBand *band, Error *err)
{
    const QuantMatrix *m = &band->stored;
    const bool in_rows = quant_geometry(m->format)->in_rows;
    const bool own_scales = in_rows && m->group_out == 1;
    const int64_t step = in_rows ? WEIGHT_PANEL : t->n;
    Status s = quant_check(m, t->item->name, err);
    for (int64_t at = 0; !s && at < t->n; at += step) {
        int64_t n = t->n - at < step ? t->n - at : step;
        QuantMatrix part = in_rows ? quant_rows(m, at, n) : *m;
        t->hash += hash_of(t, part.codes, band->code_bytes / (size_t)t->n * (size_t)n, at);
        if (own_scales)
            t->hash += XXH3_64bits_withSeed(part.scales, band->scale_bytes / (size_t)t->n * (size_t)n, ~(uint64_t)(t->first + at));
        weight_put_blocks(t->item->matrix, t->first + at, &part);
    }
    t->hash += hash_of(t, m->scales, own_scales ? 0 : band->scale_bytes, 0) ^ hash_of(t, m->zeros, band->zero_bytes, 0);
    return s;
}

Status load_task_put(const LoadContext *c, LoadTask *t, const LoadStaged *staged, Error *err)
{
    if (t->source == LOAD_QUANTIZED) return load_quantize_put(c, t, staged->staging, err);
    if (t->source == LOAD_STORED || t->source == LOAD_DUMMY_STORED) return load_put_stored(t, &staged->stored, err);
    if (t->item->matrix) {
        load_put_matrix(t, staged->rows);
        return OK;
    }
    t->hash = hash_of(t, staged->rows, t->row_bytes, 0);
    return store_vector(c->backend, t, staged->rows, err);
}
