/* Inside of the CPU backend: what its files share and nobody else includes.
 *
 * An op runs to its end inside the call. It checks nothing (shapes are checked when the model is opened),
 * counts its rows, spreads its work with stream_for() or stream_parallel(), and ends with a FAULT_POINT. */
#pragma once

#include "backend/backend.h"
#include "backend/cpu/workers.h"
#include "backend/fault.h"
#include "backend/ops.h"

/* ---- the table: scalar functions are the contract, variants go on top with the same bits ---- */
void cpu_scalar_add_linear(Ops *ops);      /* linear */
void cpu_scalar_add_norm(Ops *ops);        /* rms_norm, rms_norm_gated */
void cpu_scalar_add_activation(Ops *ops);  /* add, silu_mul, sigmoid_mul */
void cpu_scalar_add_rows(Ops *ops);        /* embed, round_rows, gather_rows, kv_store, kv_move */
void cpu_scalar_add_rope(Ops *ops);        /* rope */
void cpu_scalar_add_attention(Ops *ops);   /* attention */
void cpu_scalar_add_conv(Ops *ops);        /* conv_silu */
void cpu_scalar_add_gated_delta(Ops *ops); /* gated_delta, gated_delta_commit */
void cpu_scalar_add_draft(Ops *ops);       /* scale_cap, block_conv, pick */

void cpu_avx2_add_linear(Ops *ops);
void cpu_avx2_add_norm(Ops *ops);
void cpu_avx2_add_activation(Ops *ops);
void cpu_avx2_add_rows(Ops *ops);
void cpu_avx2_add_rope(Ops *ops);
void cpu_avx2_add_attention(Ops *ops);
void cpu_avx2_add_conv(Ops *ops);
void cpu_avx2_add_gated_delta(Ops *ops);

void cpu_neon_add_linear(Ops *ops);
void cpu_neon_add_norm(Ops *ops);
void cpu_neon_add_activation(Ops *ops);
void cpu_neon_add_rows(Ops *ops);
void cpu_neon_add_rope(Ops *ops);
void cpu_neon_add_attention(Ops *ops);
void cpu_neon_add_conv(Ops *ops);
void cpu_neon_add_gated_delta(Ops *ops);

void cpu_avx512_add_linear(Ops *ops);
void cpu_avx512_add_norm(Ops *ops);
void cpu_avx512_add_activation(Ops *ops);
void cpu_avx512_add_rows(Ops *ops);
void cpu_avx512_add_rope(Ops *ops);
void cpu_avx512_add_attention(Ops *ops);
void cpu_avx512_add_conv(Ops *ops);
void cpu_avx512_add_gated_delta(Ops *ops);
void cpu_avx512_bf16_add_linear(Ops *ops);

/* Panels [first, end) of one job of a linear: one worker's share of it. */
typedef struct LinearSpan {
    const LinearJob *job;
    int64_t          first, end;
} LinearSpan;

/* Computes the outputs of some spans for all rows of x. scratch: worker_scratch(). */
typedef void (*LinearSpansFn)(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
LinearSpansFn cpu_linear_blocks(unsigned features); /* the best for these features: MATH_INT8_BLOCK */
LinearSpansFn cpu_linear_fp8(unsigned features);    /* MATH_W8A16 */

/* linear over weights as they are stored: FP8, and blocks by the products of bytes that an instruction set has. */
void cpu_avx2_linear_fp8(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_avx512_linear_fp8(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_avx512_bf16_linear_fp8(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_neon_linear_fp8(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_avx2_linear_blocks(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_avx_vnni_linear_blocks(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_avx512_vnni_linear_blocks(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_avx512_linear_blocks(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_neon_linear_blocks(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void cpu_neon_dot_linear_blocks(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);

typedef enum CpuFeature {
    CPU_FMA         = 1, /* without it an x86 is refused: fmaf would be a library call */
    CPU_AVX2        = 2, /* and half to float conversion, as all that have it */
    CPU_AVX512      = 4, /* F, BW, VL, DQ */
    CPU_AVX512_BF16 = 8,
    CPU_NEON        = 16,
    CPU_AVX512_VNNI = 32,
    CPU_AVX512_VBMI = 64,
    CPU_AVX_VNNI    = 128, /* integer dot products of 256 bits, also without AVX-512 */
    CPU_NEON_DOT    = 256,
} CpuFeature;
unsigned cpu_features(void); /* of this machine, unmasked */
void     cpu_ops_fill(Ops *ops, unsigned features);

/* $CPU_MASK names the highest variant allowed: scalar, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16, neon or neon-dot. What is left of the features;
 * NULL or "": all. One that this machine lacks allows those below it; *ok is false for a word that names none. */
unsigned    cpu_mask_features(const char *mask, unsigned features, bool *ok);
const char *cpu_variant_name(unsigned features); /* the best that they allow */

/* ---- workers ---- */
struct Stream {
    struct Device *device; /* first, where a device module finds it; NULL: ops run here */
    const struct DeviceModule *module;
    Workers  *workers;
    int       n_in_use; /* of them, see stream_use_workers() */
    char     *scratch;  /* [workers][WORKER_SCRATCH_BYTES] */
    LinearSpansFn linear_blocks; /* linear over weights in stored blocks */
    LinearSpansFn linear_fp8;
    RowCounts counts;
};

/* Scratch of one worker inside one op: 64-byte aligned, contents undefined, gone when the op returns. */
enum { WORKER_SCRATCH_BYTES = 4 << 20 };
static inline void *worker_scratch(Stream *st, int worker)
{
    return st->scratch + (size_t)worker * WORKER_SCRATCH_BYTES;
}

/* Even, contiguous shares: worker w of n takes items [first, end). */
typedef struct Range {
    int64_t first, end;
} Range;
static inline Range worker_range(int64_t n_items, int worker, int n_workers)
{
    return (Range){ n_items * worker / n_workers, n_items * (worker + 1) / n_workers };
}

/* Runs fn on contiguous shares of items 0 .. n_items, one share a worker, and returns when all are done.
 * Fewer workers take part when a share would fall below min_items (waking one costs about a microsecond);
 * with n_items <= min_items fn runs here, on worker 0. No call at all for n_items <= 0. */
typedef void (*ForFn)(void *arg, int64_t first, int64_t end, int worker);
void stream_for(Stream *st, int64_t n_items, int64_t min_items, ForFn fn, void *arg);

/* fn(arg, worker, n_workers) on the first n_workers (cut to those in use). */
void stream_parallel_n(Stream *st, int n_workers, ParallelFn fn, void *arg);

/* ---- counters, inside kernels, on the calling thread ---- */
static inline void count_rows(uint64_t counts[COUNT_ROWS_MAX + 1], int64_t n_rows)
{
    counts[n_rows < COUNT_ROWS_MAX ? n_rows : COUNT_ROWS_MAX]++;
}
