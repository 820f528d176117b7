/* Top-k, top-p and min-p against a full sort in double; lists of the largest; exponentials in all variants. */
#include "backend/backend.h"
#include "base/fmath.h"
#include "random.h"
#include "sampling/filter.h"
#include "sampling/softmax.h"
#include "sampling/topk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_N = 20000 };

typedef struct Row {
    int32_t n;
    float   score[MAX_N];
} Row;

typedef struct Sorted {
    int32_t id;
    float   score;
} Sorted;

static int by_rank(const void *a, const void *b)
{
    const Sorted *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The ranking of the unmasked ids; how many. */
static int32_t sort_row(const Row *row, Sorted *out)
{
    int32_t n = 0;
    for (int32_t i = 0; i < row->n; i++) {
        if (row->score[i] > -INFINITY) out[n++] = (Sorted){ i, row->score[i] };
    }
    qsort(out, (size_t)n, sizeof *out, by_rank);
    return n;
}

/* Rows of many kinds: smooth, many equal scores, zeros of both signs, flat, masked, one far above the rest, huge. */
static void fill_row(Row *row, Random *r, int kind, int32_t n)
{
    row->n = n;
    for (int32_t i = 0; i < n; i++) {
        float x = random_normal(r) * 4;
        if (kind == 1) x = (float)random_below(r, 9) - 4;
        if (kind == 2) x = random_below(r, 2) ? 0.0f : -0.0f;
        if (kind == 3) x = -1234.5f;
        if (kind == 4) x = random_below(r, 3) ? -INFINITY : x;
        if (kind == 5) x = i == n / 2 ? 40.0f : x;
        if (kind == 6) x *= 1e30f;
        row->score[i] = x;
    }
    if (kind == 4) row->score[0] = 0;
}
enum { N_KINDS = 7 };

typedef struct Fixture {
    Row        row;
    Sorted     sorted[MAX_N];
    Candidates c;
    int32_t    id[MAX_N];
    float      score[MAX_N], weight[MAX_N];
} Fixture;

static Fixture f;

static void take(void)
{
    f.c = (Candidates){ .id = f.id, .score = f.score, .weight = f.weight };
    candidates_take(&f.c, f.row.score, f.row.n);
}

/* c holds exactly the first n of the ranking, ascending by id. */
static void check_kept(int32_t n)
{
    static bool is_kept[MAX_N];
    memset(is_kept, 0, sizeof is_kept);
    for (int32_t i = 0; i < n; i++) is_kept[f.sorted[i].id] = true;
    assert_int_equal(f.c.n, n);
    for (int32_t i = 0; i < f.c.n; i++) {
        assert_true(is_kept[f.c.id[i]]);
        assert_true(i == 0 || f.c.id[i] > f.c.id[i - 1]);
        assert_true(f.c.score[i] == f.row.score[f.c.id[i]]);
    }
}

static void top_k_is_the_ranking(void **state)
{
    static const int32_t sizes[] = { 1, 2, 63, 1000, MAX_N }, ks[] = { 1, 2, 20, 64, 999, 1000000 };
    Random r = { 1 };
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (int s = 0; s < COUNT(sizes); s++) {
            fill_row(&f.row, &r, kind, sizes[s]);
            int32_t n = sort_row(&f.row, f.sorted);
            for (int k = 0; k < COUNT(ks); k++) {
                take();
                assert_int_equal(f.c.n, n);
                candidates_keep_top_k(&f.c, ks[k]);
                check_kept(ks[k] < n ? ks[k] : n);
            }
        }
    }
}

/* Mass of the first n of the ranking over all of it, in double. */
static double mass_of(int32_t n, int32_t all, double temperature)
{
    double part = 0, total = 0;
    for (int32_t i = 0; i < all; i++) {
        double w = exp(((double)f.sorted[i].score - (double)f.sorted[0].score) / temperature);
        total += w;
        if (i < n) part += w;
    }
    return part / total;
}

/* Smallest beginning with at least top_p: what is kept has it, one less has not. A float32 exponential is off by
 * 1e-7 of itself (and by the rounding of score / temperature), so a bound that close to the cut may fall either way. */
static void top_p_is_the_smallest(void **state)
{
    static const float ps[] = { 1e-9f, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 0.9999999f }, temperatures[] = { 0.3f, 1, 2 };
    Random r = { 2 };
    for (int kind = 0; kind < N_KINDS - 1; kind++) {
        for (int k = 0; k < COUNT(ps) * COUNT(temperatures); k++) {
            float top_p = ps[k % COUNT(ps)], temperature = temperatures[k / COUNT(ps)];
            fill_row(&f.row, &r, kind, 1 + random_below(&r, 3000));
            int32_t n = sort_row(&f.row, f.sorted);
            take();
            candidates_weigh(&f.c, f.sorted[0].score, temperature);
            candidates_keep_top_p(&f.c, top_p);
            check_kept(f.c.n);
            double slack = 2e-6;
            assert_true(f.c.n >= 1);
            assert_true(mass_of(f.c.n, n, temperature) >= (double)top_p - slack);
            assert_true(f.c.n == 1 || mass_of(f.c.n - 1, n, temperature) < (double)top_p + slack);
        }
    }
}

/* Where the masses are exact (equal scores), so is the cut: 1000 ids of 1/1000 each. */
static void top_p_of_equal_scores_counts(void **state)
{
    static const float ps[] = { 0.001f, 0.25f, 0.5f, 0.75f };
    static const int32_t want[] = { 2, 250, 500, 750 }; /* float32 0.001 is a little above 1/1000 */
    Random r = { 3 };
    fill_row(&f.row, &r, 3, 1000);
    for (int i = 0; i < COUNT(ps); i++) {
        sort_row(&f.row, f.sorted);
        take();
        candidates_weigh(&f.c, -1234.5f, 1);
        candidates_keep_top_p(&f.c, ps[i]);
        check_kept(want[i]);
    }
}

static void min_p_is_a_share_of_the_largest(void **state)
{
    static const float ps[] = { 1e-6f, 0.01f, 0.1f, 0.5f, 1 };
    Random r = { 4 };
    for (int kind = 0; kind < N_KINDS - 1; kind++) {
        for (int k = 0; k < COUNT(ps); k++) {
            fill_row(&f.row, &r, kind, 2000);
            int32_t n = sort_row(&f.row, f.sorted), certain = 0, possible = 0;
            take();
            candidates_weigh(&f.c, f.sorted[0].score, 0.8f);
            candidates_keep_min_p(&f.c, ps[k]);
            for (int32_t i = 0; i < n; i++) {
                double share = exp(((double)f.sorted[i].score - (double)f.sorted[0].score) / (double)0.8f);
                certain += share > (double)ps[k] * (1 + 1e-5);
                possible += share >= (double)ps[k] * (1 - 1e-5);
            }
            assert_in_range(f.c.n, certain, possible);
            check_kept(f.c.n);
        }
    }
}

/* Each filter looks at what the one before it left: of four equal ids, top-k 2 leaves two halves, and top-p 0.6 both;
 * over all four, 0.6 would have been three. */
static void filters_chain(void **state)
{
    f.row = (Row){ .n = 4, .score = { 1, 1, 1, 1 } };
    sort_row(&f.row, f.sorted);
    take();
    candidates_keep_top_k(&f.c, 2);
    candidates_weigh(&f.c, 1, 1);
    candidates_keep_top_p(&f.c, 0.6f);
    check_kept(2);
    candidates_keep_top_p(&f.c, 0.5f);
    check_kept(1);
}

static void list_is_sorted(void **state)
{
    static const int32_t ks[] = { 0, 1, 20, 64, 1000 };
    static int32_t id[MAX_N];
    static float value[MAX_N];
    Random r = { 5 };
    for (int kind = 0; kind <= N_KINDS; kind++) {
        for (int k = 0; k < COUNT(ks); k++) {
            fill_row(&f.row, &r, kind, 1 + random_below(&r, 5000));
            if (kind == N_KINDS) {
                for (int32_t i = 0; i < f.row.n; i++) f.row.score[i] = (float)i; /* every one displaces another */
            }
            int32_t n = sort_row(&f.row, f.sorted), want = n < ks[k] ? n : ks[k];
            assert_int_equal(topk_list(f.row.score, f.row.n, ks[k], id, value), want);
            for (int32_t i = 0; i < want; i++) {
                assert_int_equal(id[i], f.sorted[i].id);
                assert_true(value[i] == f.sorted[i].score);
            }
        }
    }
}

static void variants_give_the_same_bits(void **state)
{
    static float x[4099], want[4099], got[4099];
    Random r = { 6 };
    for (int i = 0; i < COUNT(x); i++) x[i] = (float)(-110 * random_unit(&r));
    x[0] = 0;
    x[1] = -INFINITY;
    x[2] = -3e38f;
    x[3] = -1e-39f;
    for (int variant = 1; variant < SOFTMAX_VARIANTS; variant++) {
        for (int n = COUNT(x) - 20; softmax_exp_variant(variant) && n <= COUNT(x); n++) {
            softmax_exp_variant(0)(want, x, n, 0.25f);
            softmax_exp_variant(variant)(got, x, n, 0.25f);
            assert_memory_equal(want, got, (size_t)n * sizeof *got);
        }
    }
    softmax_exp_variant(0)(want, x, COUNT(x), 0.25f); /* where there is no other */
    assert_true(want[0] == f_exp(-0.25f) && want[1] == 0 && want[2] == 0);
}

/* The order that softmax.h states, an addition at a time. */
static float sum_in_lanes(const float *x, int32_t n)
{
    float lane[16] = { 0 };
    for (int32_t i = 0; i < n; i++) lane[i % 16] += x[i];
    for (int w = 8; w > 0; w /= 2) {
        for (int i = 0; i < w; i++) lane[i] += lane[i + w];
    }
    return lane[0];
}

static void log_sum_is_close_and_its_order_fixed(void **state)
{
    static const int32_t sizes[] = { 1, 15, 16, 17, 255, 256, 257, 1023, 1024, 1025, 4097, MAX_N };
    static float e[MAX_N], piece[MAX_N / 256 + 1];
    Random r = { 7 };
    for (int s = 0; s < COUNT(sizes); s++) {
        fill_row(&f.row, &r, s % 2 ? 0 : 4, sizes[s]);
        sort_row(&f.row, f.sorted);
        float max = f.sorted[0].score;
        double sum = 0;
        int32_t n_pieces = 0;
        for (int32_t i = 0; i < sizes[s]; i++) {
            e[i] = f_exp(f.row.score[i] - max);
            sum += exp((double)f.row.score[i] - (double)max);
        }
        for (int32_t first = 0; first < sizes[s]; first += 256) {
            int32_t n = sizes[s] - first < 256 ? sizes[s] - first : 256;
            piece[n_pieces++] = sum_in_lanes(e + first, n);
        }
        float got = softmax_log_sum(f.row.score, sizes[s], max);
        assert_true(got == f_log(sum_in_lanes(piece, n_pieces)));
        assert_true(fabs((double)got - log(sum)) <= 1e-6 * (1 + log(sum)));
    }
}

int main(void)
{
    numeric_mode_enter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_k_is_the_ranking),
        cmocka_unit_test(top_p_is_the_smallest),
        cmocka_unit_test(top_p_of_equal_scores_counts),
        cmocka_unit_test(min_p_is_a_share_of_the_largest),
        cmocka_unit_test(filters_chain),
        cmocka_unit_test(list_is_sorted),
        cmocka_unit_test(variants_give_the_same_bits),
        cmocka_unit_test(log_sum_is_close_and_its_order_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
