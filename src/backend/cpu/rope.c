/* Rotary embedding: the contract.
 *
 * Angle = position * inv_freq rounded to float32, then sine and cosine of that number; the pair (i, i + dim / 2)
 * turns by one multiplication and one fma each. All heads of a row share its sines and cosines. */
#include "backend/cpu/rope.h"

#include "backend/cpu/vectors.h"
#include "base/fmath.h"

static void rope_rows(void *arg, int64_t first, int64_t end, int worker)
{
    const RopeJob *job = arg;
    float c[ROPE_MAX_PAIRS], s[ROPE_MAX_PAIRS];
    for (int64_t r = first; r < end; r++) {
        job->row_turns(job, r, c, s);
        for (int64_t h = 0; h < job->x.shape[1]; h++)
            job->turn_head(tensor_f32(job->x, r) + h * job->x.stride[1], c, s, job->params->dim / 2);
    }
}

void rope_run(Stream *st, RopeJob job)
{
    CHECK(job.params->dim / 2 <= ROPE_MAX_PAIRS);
    stream_for(st, job.x.shape[0], rows_per_share(job.x), rope_rows, &job);
}

/* ---- the contract's arithmetic ---- */

static void row_turns(const RopeJob *job, int64_t row, float *c, float *s)
{
    const RopeParams *p = job->params;
    for (int32_t i = 0; i < p->dim / 2; i++) {
        int axis = p->axis ? p->axis[i] : 0;
        float angle = (float)job->rope[axis * (int64_t)job->n_rows + row] * p->inv_freq[i];
        f_sin_cos(angle, &s[i], &c[i]);
        c[i] *= p->scale;
        s[i] *= p->scale;
    }
}

static void turn_head(float *x, const float *c, const float *s, int32_t half)
{
    for (int32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(a, c[i], -(b * s[i]));
        x[i + half] = fmaf(b, c[i], a * s[i]);
    }
}

static void rope(Stream *st, Tensor x, const int32_t *positions, int32_t n_rows, const RopeParams *params)
{
    rope_run(st, (RopeJob){ x, positions, n_rows, params, row_turns, turn_head });
}

void cpu_scalar_add_rope(Ops *ops)
{
    ops->rope = rope;
}
