/* Rotary embedding in vectors. Sines and cosines, in double, are computed once a row and serve all its heads. */
#include "backend/cpu/rope.h"
#include "backend/cpu/vec/sin_cos.h"

static void row_turns(const RopeJob *job, int64_t row, float *c, float *s)
{
    const RopeParams *p = job->params;
    int32_t half = p->dim / 2;
    for (int32_t i = 0; i < half; i += V_LANES) {
        float position[V_LANES] = { 0 };
        for (int32_t l = 0; l < V_LANES && i + l < half; l++)
            position[l] = (float)job->rope[(p->axis ? p->axis[i + l] : 0) * (int64_t)job->n_rows + row];
        V sine, cosine;
        v_sin_cos(v_load(position) * v_load_n(p->inv_freq + i, half - i), &sine, &cosine);
        v_store_n(s + i, sine * v_set(p->scale), half - i);
        v_store_n(c + i, cosine * v_set(p->scale), half - i);
    }
}

static void turn_head(float *x, const float *c, const float *s, int32_t half)
{
    for (int32_t i = 0; i < half; i += V_LANES) {
        int32_t n = half - i;
        V a = v_load_n(x + i, n), b = v_load_n(x + half + i, n), cosine = v_load_n(c + i, n), sine = v_load_n(s + i, n);
        v_store_n(x + i, v_fma(a, cosine, -(b * sine)), n);
        v_store_n(x + half + i, v_fma(b, cosine, a * sine), n);
    }
}

static void rope(Stream *st, Tensor x, const int32_t *positions, int32_t n_rows, const RopeParams *params)
{
    rope_run(st, (RopeJob){ x, positions, n_rows, params, row_turns, turn_head });
}

void VEC_NAME(add_rope)(Ops *ops)
{
    ops->rope = rope;
}
