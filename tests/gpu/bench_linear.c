/* Time of the linears of one layer, and of the last matrix, by rows: bench_linear [rows ..]
 *
 * The shapes are Qwen3-8B's. Launches of one kind follow each other over so many matrices that none is in the cache, as layers
 * of a model do; a kernel may begin while the one before ends. Values are random: zeros run faster. The first, middle and last
 * row of every width must have the bits of that row alone, else it fails in the end. */
#include "backend/backend.h"
#include "base/clock.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 4096, INNER = 12288, VOCABULARY = 151936, MOST_ROWS = 512, MAX_JOBS = 3, MAX_COPIES = 16, BYTES = 400 << 20, RUNS = 5, LAUNCHES = 32 };

typedef struct Kind {
    const char *name;
    int64_t     n_in, n_out[MAX_JOBS];
    int         n_jobs, is_gated, row_parallel;
} Kind;

static const Kind kinds[] = {
    { "q, k, v", HIDDEN, { 4096, 1024, 1024 }, 3, 0, 0 }, { "o", 4096, { HIDDEN }, 1, 0, 1 },
    { "gate, up, silu", HIDDEN, { INNER, INNER }, 2, 1, 0 }, { "down", INNER, { HIDDEN }, 1, 0, 1 }, { "lm_head", HIDDEN, { VOCABULARY }, 1, 0, 0 },
};

typedef struct Bench {
    Backend   *backend;
    const Ops *ops;
    Stream    *stream;
    uint16_t  *random; /* bf16 around 0, as many as the longest rows at once */
    void      *x, *out, *seen[2]; /* seen: by this side too */
} Bench;

enum { PIECE_ROWS = 256 };

static void fill(Weight *w, const uint16_t *random)
{
    for (int64_t first = 0; first < w->n_out; first += PIECE_ROWS) {
        int64_t n = w->n_out - first < PIECE_ROWS ? w->n_out - first : PIECE_ROWS;
        weight_put_rows(w, first, n, random, DT_BF16);
    }
}

static void run_once(const Bench *b, const Kind *k, const Weight *w, char *out, int64_t first, int64_t rows)
{
    Tensor x = tensor_2d((uint16_t *)b->x + first * k->n_in, DT_BF16, rows, k->n_in);
    LinearJob jobs[MAX_JOBS];
    if (k->is_gated) {
        b->ops->linear_silu_mul(b->stream, tensor_2d(out, DT_BF16, rows, k->n_out[0]), x, &w[0], &w[1]);
        return;
    }
    for (int j = 0; j < k->n_jobs; j++) {
        jobs[j] = (LinearJob){ tensor_2d(out, DT_F32, rows, k->n_out[j]), &w[j] };
        out += (size_t)(rows * k->n_out[j]) * sizeof(float);
    }
    b->ops->linear(b->stream, x, jobs, k->n_jobs);
}

/* Microseconds a launch: the best of a few runs of many. */
static double time_of(const Bench *b, const Kind *k, Weight (*w)[MAX_JOBS], int copies, int64_t rows)
{
    double best = 1e30;
    int launches = k->n_out[0] == VOCABULARY ? LAUNCHES / 4 : LAUNCHES;
    for (int run = 0; run < RUNS; run++) {
        stream_sync(b->stream);
        double t = clock_ms();
        for (int i = 0; i < launches; i++) run_once(b, k, w[i % copies], b->out, 0, rows);
        stream_sync(b->stream);
        double us = (clock_ms() - t) * 1e3 / launches;
        if (us < best) best = us;
    }
    return best;
}

/* Outputs of some rows of a pass that differ from those of the row alone. */
static int64_t differing(const Bench *b, const Kind *k, const Weight *w, int64_t rows)
{
    int64_t n = 0, picked[] = { 0, rows / 2, rows - 1 };
    run_once(b, k, w, b->seen[0], 0, rows);
    for (int p = 0; p < COUNT(picked); p++) {
        run_once(b, k, w, b->seen[1], picked[p], 1);
        stream_sync(b->stream);
        const char *all = b->seen[0], *alone = b->seen[1];
        size_t item = k->is_gated ? sizeof(uint16_t) : sizeof(float);
        for (int j = 0; j < (k->is_gated ? 1 : k->n_jobs); j++) {
            for (int64_t i = 0; i < k->n_out[j]; i++)
                n += memcmp(all + (size_t)(picked[p] * k->n_out[j] + i) * item, alone + (size_t)i * item, item) != 0;
            all += (size_t)(rows * k->n_out[j]) * item;
            alone += (size_t)k->n_out[j] * item;
        }
    }
    return n;
}

static Status bench_kind(const Bench *b, const Kind *k, const int *rows, int n_rows, Error *err)
{
    Contract c = contract_for(MATH_BF16, k->n_in, k->row_parallel);
    static Weight w[MAX_COPIES][MAX_JOBS];
    double bytes = 0, outs = 0;
    Status found = OK;
    for (int j = 0; j < k->n_jobs; j++) outs += (double)k->n_out[j];
    bytes = outs * (double)k->n_in * 2;
    int copies = (int)(BYTES / bytes) + 1;
    copies = copies > MAX_COPIES ? MAX_COPIES : copies;
    for (int i = 0; i < copies; i++)
        for (int j = 0; j < k->n_jobs; j++) {
            Status s = weight_alloc(b->backend, &w[i][j], k->n_out[j], k->n_in, c, err);
            if (s) return s;
            fill(&w[i][j], b->random);
        }
    printf("%-16s", k->name);
    for (int r = 0; r < n_rows; r++) {
        if (k->n_out[0] == VOCABULARY && rows[r] > 64) continue;
        int64_t n = differing(b, k, w[0], rows[r]);
        if (n > 0) printf(" [%lld outputs differ]", (long long)n);
        if (n > 0 && !found) found = error_set(err, ERR_NUMERIC, "outputs of %s depend on how many rows came along", k->name);
        double us = time_of(b, k, w, copies, rows[r]);
        if (rows[r] <= 64) printf("  %7.1f (%4.0f)", us, bytes / us * 1e-3);
        else printf("  %7.1f (%4.0f)", us, 2e-6 * outs * (double)k->n_in * rows[r] / us);
    }
    printf("\n");
    for (int i = 0; i < copies; i++)
        for (int j = 0; j < k->n_jobs; j++) backend_free(b->backend, w[i][j].data);
    return found;
}

static Status run(const int *rows, int n_rows, Error *err)
{
    Bench b = { 0 };
    Status s = backend_open(&b.backend, &(BackendOptions){ .device = DEVICE_CUDA }, err);
    if (s) return s;
    b.ops = backend_ops(b.backend);
    b.stream = backend_stream(b.backend);
    size_t n = (size_t)PIECE_ROWS * INNER;
    b.random = mem_alloc_array(n, sizeof *b.random);
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b.random[i] = (uint16_t)((state >> 63) << 15 | (0x3c00 + (state >> 40) % 0x280));
    }
    b.x = backend_alloc_device(b.backend, (size_t)MOST_ROWS * INNER * 2);
    b.out = backend_alloc_device(b.backend, (size_t)64 * VOCABULARY * sizeof(float));
    for (int i = 0; i < 2; i++) b.seen[i] = backend_alloc(b.backend, (size_t)64 * VOCABULARY * sizeof(float));
    for (int i = 0; i < 2; i++) backend_upload(b.backend, (char *)b.x + (size_t)i * n * 2, b.random, n * 2);

    printf("us a launch (GB/s of weights; above 64 rows TFLOP/s)\n%-16s", "rows");
    for (int r = 0; r < n_rows; r++) printf("  %14d", rows[r]);
    printf("\n");
    bool is_narrow = false;
    for (int r = 0; r < n_rows; r++) is_narrow = is_narrow || rows[r] <= 64;
    for (int i = 0; i < COUNT(kinds) - !is_narrow; i++) {
        Status found = bench_kind(&b, &kinds[i], rows, n_rows, err);
        if (!s) s = found;
    }
    if (!s && stream_lost(b.stream)) s = error_set(err, ERR_LOST, "%s", stream_lost(b.stream));
    mem_free(b.random);
    backend_close(b.backend);
    return s;
}

int main(int argc, char **argv)
{
    static const int usual[] = { 1, 8, 16, 32, 64, 512 };
    int rows[32], n = 0;
    Error err = { 0 };
    for (int i = 1; i < argc && n < COUNT(rows); i++) rows[n++] = atoi(argv[i]);
    if (n == 0) memcpy(rows, usual, sizeof usual);
    Status s = run(rows, n > 0 ? n : COUNT(usual), &err);
    if (s) fprintf(stderr, "%s\n", err.text);
    return s != OK;
}
