/* Elementwise steps between the linears, in vectors. Memory bounds the add; silu and sigmoid cost some twenty
 * instructions a vector, an exp and a division. */
#include "backend/cpu/activation.h"
#include "backend/cpu/vec/fmath.h"

static void add_values(void *out, DType dtype, const float *a, const float *b, int64_t n)
{
    float *x = out;
    for (int64_t i = 0; i < n; i += V_LANES) v_store_n(x + i, v_load_n(a + i, n - i) + v_load_n(b + i, n - i), n - i);
}

ALWAYS_INLINE void gate_values(void *out, DType dtype, const float *x, const float *y, int64_t n, const bool is_silu)
{
    for (int64_t i = 0; i < n; i += V_LANES) {
        V a = v_load_n(x + i, n - i), b = v_load_n(y + i, n - i);
        v_put(out, i, is_silu ? v_silu(a) * b : a * v_sigmoid(b), dtype, n - i);
    }
}

static void silu_mul_values(void *out, DType dtype, const float *gate, const float *up, int64_t n)
{
    if (dtype == DT_F32) gate_values(out, DT_F32, gate, up, n, true);
    else gate_values(out, DT_BF16, gate, up, n, true);
}

static void sigmoid_mul_values(void *out, DType dtype, const float *x, const float *gate, int64_t n)
{
    if (dtype == DT_F32) gate_values(out, DT_F32, x, gate, n, false);
    else gate_values(out, DT_BF16, x, gate, n, false);
}

static void add(Stream *st, Tensor x, Tensor y)
{
    pairs_run(st, x, x, y, ADD_PER_SHARE, add_values);
}

static void silu_mul(Stream *st, Tensor out, Tensor gate, Tensor up)
{
    pairs_run(st, out, gate, up, GATE_PER_SHARE, silu_mul_values);
}

static void sigmoid_mul(Stream *st, Tensor out, Tensor x, Tensor gate)
{
    pairs_run(st, out, x, gate, GATE_PER_SHARE, sigmoid_mul_values);
}

void VEC_NAME(add_activation)(Ops *ops)
{
    ops->add = add;
    ops->silu_mul = silu_mul;
    ops->sigmoid_mul = sigmoid_mul;
}
