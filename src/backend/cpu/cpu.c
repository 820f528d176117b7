/* The table of operations of this machine: scalar first, then what its instructions allow on top. */
#include "backend/cpu/cpu_impl.h"

static void add_scalar(Ops *ops)
{
    cpu_scalar_add_linear(ops);
    cpu_scalar_add_norm(ops);
    cpu_scalar_add_activation(ops);
    cpu_scalar_add_rows(ops);
    cpu_scalar_add_rope(ops);
    cpu_scalar_add_attention(ops);
    cpu_scalar_add_conv(ops);
    cpu_scalar_add_gated_delta(ops);
    cpu_scalar_add_draft(ops);
}

#if defined(__x86_64__)
static void add_variants(Ops *ops, unsigned features)
{
    if (features & CPU_AVX512_BF16) cpu_avx512_add_linear(ops);
    if (!(features & CPU_AVX512)) return;
    cpu_avx512_add_norm(ops);
    cpu_avx512_add_activation(ops);
    cpu_avx512_add_rows(ops);
    cpu_avx512_add_rope(ops);
    cpu_avx512_add_attention(ops);
    cpu_avx512_add_conv(ops);
    cpu_avx512_add_gated_delta(ops);
}
#else
static void add_variants(Ops *ops, unsigned features)
{
}
#endif

void cpu_ops_fill(Ops *ops, unsigned features)
{
    *ops = (Ops){ 0 };
    add_scalar(ops);
    add_variants(ops, features);
}
