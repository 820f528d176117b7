/* Read bandwidth: the ceiling under which a decode step lives.
 *
 * Reading is all it does: each worker folds its share into 16 accumulators by xor, so that no load waits for
 * another. What reads fastest differs between machines, hence the ways. */
#include "backend/measure.h"

#include <stdatomic.h>
#include <time.h>

enum { LINE_BYTES = 64, LINE_LANES = 4, MAX_STREAMS = 8 };

typedef uint64_t Lane __attribute__((vector_size(16)));

typedef struct Way {
    int n_streams, ahead_bytes; /* prefetch distance; 0 = left to the hardware */
} Way;

typedef struct Reading {
    const char   *data;
    size_t        n_lines;
    Way           way;
    atomic_ullong sink; /* so that the compiler may not drop the reading */
} Reading;

static Lane read_streams(const char *first, size_t stream_bytes, Way way)
{
    Lane sum[LINE_LANES] = { { 0 } };
    for (size_t at = 0; at < stream_bytes; at += LINE_BYTES) {
        for (int s = 0; s < way.n_streams; s++) {
            const char *line = first + (size_t)s * stream_bytes + at;
            if (way.ahead_bytes) __builtin_prefetch(line + way.ahead_bytes);
            for (int i = 0; i < LINE_LANES; i++) sum[i] ^= ((const Lane *)line)[i];
        }
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

static void read_share(void *arg, int worker, int n_workers)
{
    Reading *r = arg;
    size_t first = r->n_lines * (size_t)worker / (size_t)n_workers;
    size_t end = r->n_lines * (size_t)(worker + 1) / (size_t)n_workers;
    size_t stream_lines = (end - first) / (size_t)r->way.n_streams; /* a few lines at the end may stay unread */
    Lane sum = read_streams(r->data + first * LINE_BYTES, stream_lines * LINE_BYTES, r->way);
    atomic_fetch_xor(&r->sink, sum[0] ^ sum[1]);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double measure_read_bandwidth(Stream *st, const void *data, size_t bytes, double seconds)
{
    static const Way ways[] = { { 1, 0 }, { 1, 2048 }, { 4, 0 }, { 4, 1024 }, { 4, 2048 }, { 8, 1024 } };
    double best = 1e30, end = now_s() + seconds;
    for (int round = 0; round < 2 || now_s() < end; round++) { /* rounds, so that a disturbance hits all ways */
        for (int i = 0; i < COUNT(ways); i++) {
            Reading r = { data, bytes / LINE_BYTES, ways[i], 0 };
            double start = now_s();
            stream_parallel(st, read_share, &r);
            double took = now_s() - start;
            if (took < best) best = took;
        }
    }
    return (double)bytes / best;
}
