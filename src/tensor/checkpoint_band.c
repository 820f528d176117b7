/* Bands of a stored matrix: runs of rows, or, where inputs are outermost (AWQ, GPTQ), of inputs of all rows, with the scales
 * and zero points of their groups. Either lies in the file in one run a part, so a band is one request a part. */
#include "tensor/checkpoint_impl.h"

enum { ROWS_STEP = 16, INPUTS_STEP = 128, MAX_WHOLE_GROUP = 1024 };

/* What things have in a part: so many bytes for each group of so many. */
typedef struct Share {
    int64_t group;
    size_t  bytes;
} Share;

typedef struct Shares {
    int64_t n_things;
    Share   codes, scales, zeros;
} Shares;

static Share share(const CheckpointPart *part, int64_t n_things, int64_t group)
{
    if (group < 1 || group > n_things) group = n_things > 0 ? n_things : 1;
    int64_t n_groups = (n_things + group - 1) / group;
    return (Share){ group, n_groups ? (size_t)(part->bytes / (uint64_t)n_groups) : 0 };
}

static Shares shares_of(const CheckpointTensor *t)
{
    const QuantMatrix *m = &t->stored;
    const bool in_rows = quant_geometry(m->format)->in_rows;
    const int64_t n = in_rows ? m->n_out : m->n_in;
    return (Shares){ n, share(&t->codes, n, in_rows ? 1 : quant_geometry(m->format)->block), share(&t->scales, n, in_rows ? m->group_out : m->group_in),
                     share(&t->zeros, n, in_rows ? QUANT_ZEROS_IN_WORD : m->group_in) };
}

/* Groups that things [first, first + n) have a part in. */
static int64_t groups_in(const Share *s, int64_t first, int64_t n)
{
    return (first + n + s->group - 1) / s->group - first / s->group;
}

int64_t checkpoint_band(const CheckpointTensor *t, size_t bytes)
{
    const Shares s = shares_of(t);
    const int64_t group = s.scales.group;
    int64_t step = quant_geometry(t->stored.format)->in_rows ? ROWS_STEP : INPUTS_STEP;
    if (group < s.n_things) {
        if (group > MAX_WHOLE_GROUP && group % step == 0) return step; /* inside one group each */
        step = step % group == 0 ? step : group % step == 0 ? group : group * step;
    }
    int64_t n = (int64_t)(bytes / (checkpoint_band_bytes(t, step) + 1)) * step;
    return n < step ? step : n;
}

int64_t checkpoint_bands_of(const CheckpointTensor *t)
{
    return shares_of(t).n_things;
}

static size_t share_bytes(const Share *s, int64_t first, int64_t n)
{
    return (size_t)groups_in(s, first, n) * s->bytes;
}

size_t checkpoint_band_bytes(const CheckpointTensor *t, int64_t n)
{
    const Shares s = shares_of(t);
    return share_bytes(&s.codes, 0, n) + share_bytes(&s.scales, 0, n) + share_bytes(&s.zeros, 0, n);
}

/* ---- staging: codes, scales, zero points, each from a page on ---- */

static size_t codes_room(const CheckpointTensor *t, const Shares *s, int64_t n)
{
    return quant_geometry(t->stored.format)->in_rows ? checkpoint_stage_rows_room(t, n) : checkpoint_stage_room(share_bytes(&s->codes, 0, n));
}

size_t checkpoint_band_room(const CheckpointTensor *t, int64_t n)
{
    const Shares s = shares_of(t);
    return codes_room(t, &s, n) + checkpoint_stage_room(share_bytes(&s.scales, 0, n)) + checkpoint_stage_room(share_bytes(&s.zeros, 0, n));
}

/* What things [first, first + n) have in a part; *out stays NULL where there is no such part. */
static Status stage_share(const Checkpoint *c, const CheckpointPart *part, const Share *s, int64_t first, int64_t n, char **staging,
                          const void **out, size_t *bytes, Error *err)
{
    void *at = NULL;
    *bytes = share_bytes(s, first, n);
    Status status = *bytes ? checkpoint_stage(c, part, (uint64_t)(first / s->group) * s->bytes, *bytes, *staging, &at, err) : OK;
    *staging += checkpoint_stage_room(share_bytes(s, 0, n));
    *out = at;
    return status;
}

static Status stage_codes(const Checkpoint *c, const CheckpointTensor *t, const Shares *s, int64_t first, int64_t n, char **staging,
                          CheckpointBand *band, Error *err)
{
    void *rows = NULL;
    if (!quant_geometry(t->stored.format)->in_rows)
        return stage_share(c, &t->codes, &s->codes, first, n, staging, &band->stored.codes, &band->code_bytes, err);
    Status status = checkpoint_stage_rows(c, t, first, n, *staging, &rows, err);
    *staging += checkpoint_stage_rows_room(t, n);
    band->stored.codes = rows;
    band->code_bytes = share_bytes(&s->codes, first, n);
    return status;
}

Status checkpoint_stage_band(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, void *staging,
                             CheckpointBand *band, Error *err)
{
    const Shares s = shares_of(t);
    CHECK(!t->rows.a || !t->scales.bytes); /* scales lie in the order of rows */
    *band = (CheckpointBand){ .stored = t->stored };
    QuantMatrix *m = &band->stored;
    *(quant_geometry(m->format)->in_rows ? &m->n_out : &m->n_in) = n;
    char *at = staging;
    Status status = stage_codes(c, t, &s, first, n, &at, band, err);
    if (!status) status = stage_share(c, &t->scales, &s.scales, first, n, &at, &m->scales, &band->scale_bytes, err);
    if (!status) status = stage_share(c, &t->zeros, &s.zeros, first, n, &at, &m->zeros, &band->zero_bytes, err);
    return status;
}
