/* Every value that the noise of a draw can take: all 2^32 words are mapped, none may give inf or NaN, none may exceed
 * NOISE_MAX or its own noise_bound(), which choosing relies on when it skips an id.
 *
 * Four billion words take seconds because the loop is compiled for AVX-512 where there is one; the same list of IEEE
 * operations gives the same bits, which is spot-checked against the plain build. */
#include "backend/backend.h"
#include "sampling/noise.h"

#include <stdio.h>

enum { CHUNK = 1024, LANE_COUNT = 16 };

typedef struct Sweep {
    float    least[LANE_COUNT], most[LANE_COUNT], least_gap[LANE_COUNT]; /* gap: bound - noise */
    uint32_t n_bad;                                                      /* not within [-2.82, NOISE_MAX], NaN, above its bound */
} Sweep;

static inline __attribute__((always_inline)) void sweep_loop(Sweep *s, uint32_t first)
{
    float noise[CHUNK], bound[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) {
        noise[i] = noise_of_word(first + i);
        bound[i] = noise_bound(first + i);
    }
    for (int i = 0; i < CHUNK; i++) s->n_bad += !(noise[i] >= -2.82f && noise[i] <= NOISE_MAX && noise[i] <= bound[i]);
    for (int i = 0; i < CHUNK; i += LANE_COUNT) {
        for (int k = 0; k < LANE_COUNT; k++) {
            float gap = bound[i + k] - noise[i + k];
            s->least[k] = noise[i + k] < s->least[k] ? noise[i + k] : s->least[k];
            s->most[k] = noise[i + k] > s->most[k] ? noise[i + k] : s->most[k];
            s->least_gap[k] = gap < s->least_gap[k] ? gap : s->least_gap[k];
        }
    }
}

static void sweep_plain(Sweep *s, uint32_t first)
{
    sweep_loop(s, first);
}

typedef void (*SweepFn)(Sweep *s, uint32_t first);

#ifdef __x86_64__
__attribute__((target("avx512f,avx512dq,prefer-vector-width=512"))) static void sweep_avx512(Sweep *s, uint32_t first)
{
    sweep_loop(s, first);
}
static SweepFn best_sweep(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") ? sweep_avx512 : sweep_plain;
}
#else
static SweepFn best_sweep(void)
{
    return sweep_plain;
}
#endif

static Sweep sweep_start(void)
{
    Sweep s = { .n_bad = 0 };
    for (int k = 0; k < LANE_COUNT; k++) {
        s.least[k] = s.least_gap[k] = 1e9f;
        s.most[k] = -1e9f;
    }
    return s;
}

/* The wide loop finds the same extremes as the plain one, chunk by chunk. */
static int spot_checks(SweepFn fn)
{
    int n_different = 0;
    for (uint64_t first = 0; first < 1ull << 32; first += (uint64_t)CHUNK << 10) {
        Sweep a = sweep_start(), b = sweep_start();
        fn(&a, (uint32_t)first);
        sweep_plain(&b, (uint32_t)first);
        n_different += memcmp(&a, &b, sizeof a) != 0;
    }
    return n_different;
}

int main(void)
{
    numeric_mode_enter();
    SweepFn fn = best_sweep();
    Sweep s = sweep_start();
    for (uint64_t first = 0; first < 1ull << 32; first += CHUNK) fn(&s, (uint32_t)first);

    float least = s.least[0], most = s.most[0], gap = s.least_gap[0];
    for (int k = 1; k < LANE_COUNT; k++) {
        least = s.least[k] < least ? s.least[k] : least;
        most = s.most[k] > most ? s.most[k] : most;
        gap = s.least_gap[k] < gap ? s.least_gap[k] : gap;
    }
    int n_different = spot_checks(fn);
    printf("4294967296 words: noise in [%.6f, %.6f], bound above it by at least %.2g, %u bad, %d chunks differ\n", least, most,
           gap, s.n_bad, n_different);
    return s.n_bad || n_different ? 1 : 0;
}
