/* Choosing: the laws of keyed draws, equality with the plain formula, and every rule of a row.
 *
 * The oracle draws as the header says, without any cleverness: a noise for every id, a full sort for the filters. */
#include "backend/backend.h"
#include "base/memory.h"
#include "chi_square.h"
#include "random.h"
#include "sampling/choose.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_VOCAB = 3000, N_SEEDS = 200000, MAX_SIGMAS = 4 };

static const SampleParams PLAIN = { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };

static Chooser *open_chooser(int32_t vocab)
{
    Chooser *c = NULL;
    Error err = { 0 };
    assert_int_equal(chooser_open(&c, vocab, &err), OK);
    return c;
}

static RowRule rule_of(const SampleParams *p)
{
    return (RowRule){ .forced = -1, .params = p };
}

static int32_t token_of(Chooser *c, const float *logits, const RowRule *rule, DrawKey key, uint32_t index)
{
    Choice out;
    choose(c, logits, rule, key, index, &out);
    assert_true(out.is_finite);
    return out.token;
}

static int32_t greedy_of(Chooser *c, const float *logits, RowRule rule, SampleParams p)
{
    p.temperature = 0;
    rule.params = &p;
    return token_of(c, logits, &rule, (DrawKey){ 0, 0 }, 0);
}

/* ---- laws ---- */

enum { LAW_IDS = 37 };

static void fill_law(float *logits, double *p)
{
    Random r = { 11 };
    double sum = 0;
    for (int i = 0; i < LAW_IDS; i++) {
        logits[i] = 1.5f * random_normal(&r);
        sum += p[i] = exp((double)logits[i]);
    }
    for (int i = 0; i < LAW_IDS; i++) p[i] /= sum;
}

static void check_law(const char *what, const int64_t *seen, const double *expected, int n)
{
    ChiSquare c = chi_square(seen, expected, n);
    print_message("%s: chi-square %.1f of %d degrees, %+.2f sigmas\n", what, c.statistic, c.degrees, c.sigmas);
    assert_true(c.sigmas < MAX_SIGMAS && c.sigmas > -MAX_SIGMAS);
}

static void draws_follow_the_softmax(void **state)
{
    float logits[LAW_IDS];
    double p[LAW_IDS], expected[LAW_IDS];
    int64_t seen[LAW_IDS] = { 0 };
    fill_law(logits, p);
    Chooser *c = open_chooser(LAW_IDS);
    RowRule rule = rule_of(&PLAIN);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) seen[token_of(c, logits, &rule, (DrawKey){ seed, 0 }, 1000)]++;
    for (int i = 0; i < LAW_IDS; i++) expected[i] = p[i] * N_SEEDS;
    check_law("one position", seen, expected, LAW_IDS);
    chooser_close(c);
}

/* Two draws that differ only in `second` are independent, and each follows the softmax: all pairs are counted. */
static void check_joint(const char *what, DrawKey (*key_of)(uint64_t n, int which),
                        uint32_t (*index_of)(uint64_t n, int which))
{
    float logits[LAW_IDS];
    double p[LAW_IDS], expected[LAW_IDS * LAW_IDS];
    int64_t seen[LAW_IDS * LAW_IDS] = { 0 };
    fill_law(logits, p);
    Chooser *c = open_chooser(LAW_IDS);
    RowRule rule = rule_of(&PLAIN);
    for (uint64_t n = 0; n < N_SEEDS; n++) {
        int32_t a = token_of(c, logits, &rule, key_of(n, 0), index_of(n, 0));
        int32_t b = token_of(c, logits, &rule, key_of(n, 1), index_of(n, 1));
        seen[a * LAW_IDS + b]++;
    }
    for (int i = 0; i < LAW_IDS * LAW_IDS; i++) expected[i] = p[i / LAW_IDS] * p[i % LAW_IDS] * N_SEEDS;
    check_law(what, seen, expected, LAW_IDS * LAW_IDS);
    chooser_close(c);
}

static DrawKey same_key(uint64_t n, int which)
{
    return (DrawKey){ n, 0 };
}
static DrawKey next_choice(uint64_t n, int which)
{
    return (DrawKey){ n, (uint32_t)which };
}
static DrawKey next_seed(uint64_t n, int which)
{
    return (DrawKey){ 2 * n + (uint64_t)which, 0 };
}
static DrawKey high_seed(uint64_t n, int which)
{
    return (DrawKey){ n << 32 | (uint64_t)which, 7 };
}
static uint32_t same_place(uint64_t n, int which)
{
    return 1000;
}
static uint32_t next_place(uint64_t n, int which)
{
    return 1000 + (uint32_t)which;
}
static DrawKey one_key(uint64_t n, int which)
{
    return (DrawKey){ 42, 0 };
}
static uint32_t running_place(uint64_t n, int which)
{
    return (uint32_t)(2 * n) + (uint32_t)which;
}

static void pairs_are_independent(void **state)
{
    check_joint("adjacent positions", same_key, next_place);
    check_joint("two choices", next_choice, same_place);
    check_joint("neighbouring seeds", next_seed, same_place);
    check_joint("high half of the seed", high_seed, same_place);
    check_joint("one seed, running positions", one_key, running_place);
}

static void filtered_draws_follow_the_law_that_is_left(void **state)
{
    float logits[LAW_IDS];
    double p[LAW_IDS], expected[LAW_IDS] = { 0 }, sum = 0;
    int64_t seen[LAW_IDS] = { 0 };
    fill_law(logits, p);
    Chooser *c = open_chooser(LAW_IDS);
    SampleParams params = PLAIN;
    params.temperature = 0.5f;
    params.top_k = 10;
    RowRule rule = rule_of(&params);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) seen[token_of(c, logits, &rule, (DrawKey){ seed, 0 }, 0)]++;
    for (int i = 0; i < LAW_IDS; i++) {
        int rank = 0;
        for (int j = 0; j < LAW_IDS; j++) rank += p[j] > p[i];
        sum += expected[i] = rank < 10 ? p[i] * p[i] : 0; /* temperature 1/2 squares chances */
    }
    for (int i = 0; i < LAW_IDS; i++) {
        if (expected[i] == 0) assert_int_equal(seen[i], 0);
        expected[i] *= N_SEEDS / sum;
    }
    check_law("T = 0.5, top-k 10", seen, expected, LAW_IDS);
    chooser_close(c);
}

/* ---- the plain formula ---- */

static const float *compared;
static int by_rank(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (compared[x] != compared[y]) return compared[x] > compared[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* How many of the ranking top-k, top-p and min-p leave, in double; *is_close when a rounding could change it. */
static int32_t oracle_kept(const float *z, const int32_t *ranked, int32_t n, const SampleParams *p, bool *is_close)
{
    double top = (double)z[ranked[0]], total = 0, mass = 0;
    int32_t kept = p->top_k > 0 && p->top_k < n ? p->top_k : n, by_p = kept;
    for (int32_t i = 0; i < kept; i++) total += exp(((double)z[ranked[i]] - top) / (double)p->temperature);
    for (int32_t i = 0; i < kept && p->top_p < 1; i++) {
        mass += exp(((double)z[ranked[i]] - top) / (double)p->temperature);
        *is_close |= fabs(mass / total - (double)p->top_p) < 2e-6;
        if (mass / total >= (double)p->top_p) {
            by_p = i + 1;
            break;
        }
    }
    for (int32_t i = 0; i < by_p && p->min_p > 0; i++) {
        double share = exp(((double)z[ranked[i]] - top) / (double)p->temperature);
        *is_close |= fabs(share - (double)p->min_p) < 1e-5 * (double)p->min_p;
        if (share < (double)p->min_p) return i;
    }
    return by_p;
}

static int32_t oracle_token(const float *z, int32_t n, const SampleParams *p, DrawKey key, uint32_t index,
                            bool *is_close)
{
    static int32_t ranked[MAX_VOCAB];
    for (int32_t i = 0; i < n; i++) ranked[i] = i;
    compared = z;
    qsort(ranked, (size_t)n, sizeof *ranked, by_rank);
    int32_t kept = oracle_kept(z, ranked, n, p, is_close), best = -1;
    float best_sum = -INFINITY;
    for (int32_t i = 0; i < kept; i++) {
        int32_t id = ranked[i];
        float sum = z[id] / p->temperature + gumbel_noise(key, index, (uint32_t)id);
        if (best < 0 || sum > best_sum || (sum == best_sum && id < best)) {
            best = id;
            best_sum = sum;
        }
    }
    return best;
}

static void draw_equals_the_formula(void **state)
{
    static const float temperatures[] = { 0.05f, 0.7f, 1, 1.3f, 2 }, top_ps[] = { 1, 0.9f, 0.3f },
                       min_ps[] = { 0, 0.02f };
    static const int32_t top_ks[] = { 0, 20 }, sizes[] = { 1, 7, 64, 1003, MAX_VOCAB - 1 };
    static float z[MAX_VOCAB];
    Random r = { 12 };
    int n_close = 0, n_cases = 0;
    for (int k = 0; k < 3000; k++) {
        SampleParams p = PLAIN;
        p.temperature = temperatures[random_below(&r, COUNT(temperatures))];
        p.top_p = top_ps[random_below(&r, COUNT(top_ps))];
        p.min_p = min_ps[random_below(&r, COUNT(min_ps))];
        p.top_k = top_ks[random_below(&r, COUNT(top_ks))];
        int32_t n = sizes[k % COUNT(sizes)];
        float width = (float)random_below(&r, 4) * 1.5f; /* 0: all equal */
        for (int32_t i = 0; i < n; i++) z[i] = width * random_normal(&r);
        Chooser *c = open_chooser(n);
        RowRule rule = rule_of(&p);
        DrawKey key = { random_bits(&r), (uint32_t)random_below(&r, 4) };
        bool is_close = false;
        int32_t want = oracle_token(z, n, &p, key, (uint32_t)k, &is_close),
                got = token_of(c, z, &rule, key, (uint32_t)k);
        n_close += is_close;
        n_cases++;
        if (!is_close) assert_int_equal(got, want);
        chooser_close(c);
    }
    print_message("%d draws equal the formula, %d too close to a cut to compare\n", n_cases - n_close, n_close);
    assert_true(n_close < n_cases / 20);
}

/* ---- temperatures and ties ---- */

static void greedy_takes_the_lowest_of_equals(void **state)
{
    static const int32_t sizes[] = { 1, 15, 16, 17, 64, 100 };
    for (int s = 0; s < COUNT(sizes); s++) {
        int32_t n = sizes[s];
        float z[100] = { 0 };
        Chooser *c = open_chooser(n);
        assert_int_equal(greedy_of(c, z, rule_of(&PLAIN), PLAIN), 0);
        for (int32_t i = 0; i < n; i++) {
            for (int32_t j = 0; j < n; j++) z[j] = j == i || j == n - 1 ? 3.0f : -1.0f;
            assert_int_equal(greedy_of(c, z, rule_of(&PLAIN), PLAIN), i);
        }
        z[0] = -0.0f;
        for (int32_t j = 1; j < n; j++) z[j] = 0.0f;
        assert_int_equal(greedy_of(c, z, rule_of(&PLAIN), PLAIN), 0); /* zeros of both signs are equal */
        chooser_close(c);
    }
}

static void tiny_temperature_is_greedy(void **state)
{
    static const float tiny[] = { 1e-5f, 1e-20f, 1e-38f, 1e-45f };
    float z[100];
    Random r = { 13 };
    Chooser *c = open_chooser(100);
    for (uint64_t seed = 0; seed < 500; seed++) {
        for (int i = 0; i < 100; i++)
            z[i] = (float)random_below(&r, 50); /* with equals: noise or id decides among them */
        int32_t greedy = greedy_of(c, z, rule_of(&PLAIN), PLAIN);
        for (int k = 0; k < COUNT(tiny); k++) {
            SampleParams p = PLAIN;
            p.temperature = tiny[k];
            RowRule rule = rule_of(&p);
            assert_true(z[token_of(c, z, &rule, (DrawKey){ seed, 0 }, 5)] == z[greedy]);
        }
    }
    chooser_close(c);
}

static void huge_logits_stay_in_order(void **state)
{
    float z[4] = { -3e38f, 2.9e38f, 3e38f, 1e38f };
    SampleParams p = PLAIN;
    p.temperature = 0.5f;
    Chooser *c = open_chooser(4);
    RowRule rule = rule_of(&p);
    for (uint64_t seed = 0; seed < 100; seed++) assert_int_equal(token_of(c, z, &rule, (DrawKey){ seed, 0 }, 0), 2);
    chooser_close(c);
}

/* Equal sums of score and noise go to the lower id, also when the higher one has the larger score. */
static void equal_sums_go_to_the_lower_id(void **state)
{
    int n_ties = 0;
    Chooser *c = open_chooser(100);
    RowRule rule = rule_of(&PLAIN);
    for (uint64_t seed = 0; seed < 1000; seed++) {
        DrawKey key = { seed, 0 };
        float z[100], low = gumbel_noise(key, 0, 3), high = gumbel_noise(key, 0, 90), handicap = high - low;
        if (handicap >= 0 || low + handicap != high) continue;
        for (int i = 0; i < 100; i++) z[i] = i == 3 ? handicap : i == 90 ? 0 : -INFINITY;
        assert_int_equal(token_of(c, z, &rule, key, 0), 3);
        n_ties++;
    }
    assert_true(n_ties > 100);
    chooser_close(c);
}

static void top_k_one_is_greedy(void **state)
{
    float z[100];
    Random r = { 14 };
    Chooser *c = open_chooser(100);
    for (uint64_t seed = 0; seed < 500; seed++) {
        for (int i = 0; i < 100; i++) z[i] = (float)random_below(&r, 30) * 0x1p-20f + 7;
        SampleParams p = PLAIN, q = PLAIN;
        p.temperature = 0.7f;
        p.top_k = 1;
        q.top_p = 1e-6f;
        RowRule by_k = rule_of(&p), by_p = rule_of(&q);
        int32_t greedy = greedy_of(c, z, rule_of(&PLAIN), PLAIN);
        assert_int_equal(token_of(c, z, &by_k, (DrawKey){ seed, 0 }, 9), greedy);
        assert_int_equal(token_of(c, z, &by_p, (DrawKey){ seed, 0 }, 9), greedy);
    }
    chooser_close(c);
}

/* ---- rules ---- */

static void forbidden_ids_are_never_drawn(void **state)
{
    enum { N = 200, N_VALID = 150 };
    float z[N];
    uint32_t mask[(N + 31) / 32];
    bool is_allowed[N];
    int32_t banned[] = { 7, 149, -1, N, 1000000 };
    Random r = { 15 };
    Chooser *c = open_chooser(N);
    for (uint64_t seed = 0; seed < 20000; seed++) {
        for (int i = 0; i < COUNT(mask); i++) mask[i] = seed % 3 ? (uint32_t)random_bits(&r) : UINT32_MAX;
        mask[1] |= 1; /* id 32 stays */
        for (int i = 0; i < N; i++) {
            is_allowed[i] = i < N_VALID && (mask[i / 32] >> i % 32 & 1) && i != 7 && i != 149;
            z[i] = is_allowed[i] ? random_normal(&r) : 30.0f; /* what is forbidden is what the model wants */
        }
        SampleParams p = PLAIN;
        p.temperature = seed % 2 ? 1.3f : 0;
        p.top_k = seed % 5 ? 0 : 3;
        RowRule rule = {
            .forced = -1, .mask = mask, .n_valid = N_VALID, .params = &p, .banned = banned, .n_banned = COUNT(banned)
        };
        assert_true(is_allowed[token_of(c, z, &rule, (DrawKey){ seed, 0 }, 3)]);
    }
    chooser_close(c);
}

/* Tokens of a prompt are reported as chosen ones are. */
static void given_tokens_are_scored_alike(void **state)
{
    enum { N = 300, N_VALID = 290 };
    Chooser *c = open_chooser(N);
    float logits[N];
    SampleParams p = PLAIN;
    Random r = { 7 };
    p.n_logprobs = 5;
    RowRule rule = { .forced = -1, .n_valid = N_VALID, .params = &p };
    for (uint32_t index = 0; index < 50; index++) {
        Choice chosen, given;
        for (int i = 0; i < N; i++) logits[i] = (float)random_unit(&r) * 9;
        choose(c, logits, &rule, (DrawKey){ 3, 0 }, index, &chosen);
        assert_true(score_token(logits, N, N_VALID, chosen.token, 5, &given));
        assert_true(given.token == chosen.token && given.logprob == chosen.logprob && given.n_top == 5);
        assert_memory_equal(given.top_id, chosen.top_id, sizeof given.top_id);
        assert_memory_equal(given.top_logprob, chosen.top_logprob, sizeof given.top_logprob);
        assert_true(score_token(logits, N, N_VALID, N - 1, 0, &given));
        assert_true(given.logprob == -INFINITY && given.n_top == 0);
    }
    logits[N - 1] = NAN;
    Choice given;
    assert_false(score_token(logits, N, N_VALID, 0, 5, &given));
    assert_int_equal(given.n_top, 0);
    chooser_close(c);
}

/* Padded ids: all-valid, zero-means-all, and a count beyond the vocabulary. */
static void n_valid_zero_means_all(void **state)
{
    float z[40] = { [39] = 5 };
    Chooser *c = open_chooser(40);
    RowRule rule = rule_of(&PLAIN);
    assert_int_equal(greedy_of(c, z, rule, PLAIN), 39);
    rule.n_valid = 39;
    assert_int_equal(greedy_of(c, z, rule, PLAIN), 0);
    rule.n_valid = 100;
    assert_int_equal(greedy_of(c, z, rule, PLAIN), 39);
    chooser_close(c);
}

static void forced_beats_everything(void **state)
{
    float z[8] = { 1, 2, 3, -INFINITY, 5, 6, 7, 8 };
    uint32_t mask = 1;
    SampleParams p = PLAIN;
    p.n_logprobs = 5;
    Chooser *c = open_chooser(8);
    RowRule rule = { .forced = 3, .mask = &mask, .n_valid = 2, .params = &p };
    Choice out;
    choose(c, z, &rule, (DrawKey){ 1, 2 }, 3, &out);
    assert_true(out.is_finite);
    assert_int_equal(out.token, 3);
    assert_true(out.logprob == 0 && out.n_top == 1 && out.top_id[0] == 3 && out.top_logprob[0] == 0);
    z[0] = NAN;
    choose(c, z, &rule, (DrawKey){ 1, 2 }, 3, &out);
    assert_false(out.is_finite);
    chooser_close(c);
}

static void bias_moves_logits(void **state)
{
    float z[6] = { 1, 2, 3, 4, 5, -INFINITY };
    LogitBias bias[] = { { 0, 4.5f }, { 4, -100 }, { 5, 100 }, { 2, 1 }, { 2, 1 } };
    SampleParams p = PLAIN;
    p.bias = bias;
    p.n_bias = COUNT(bias);
    p.temperature = 0;
    p.n_logprobs = 6;
    Chooser *c = open_chooser(6);
    RowRule rule = rule_of(&p);
    Choice out;
    choose(c, z, &rule, (DrawKey){ 0, 0 }, 0, &out);
    static const int32_t order[] = { 0, 2, 3, 1, 4 }; /* 5.5, 5 (twice biased), 4, 2, -95; a masked id stays masked */
    assert_int_equal(out.n_top, COUNT(order));
    assert_memory_equal(out.top_id, order, sizeof order);
    assert_true(fabsf((out.top_logprob[0] - out.top_logprob[1]) - 0.5f) < 1e-6f);
    chooser_close(c);
}

enum { PENALTY_IDS = 50, MAX_PAST = 300 };

static void oracle_penalties(float *z, const History *h, const SampleParams *p)
{
    const int32_t *outputs[] = { h->output, h->path };
    int32_t n[] = { h->n_output, h->n_path };
    for (int32_t id = 0; id < PENALTY_IDS; id++) {
        int32_t count = 0, in_prompt = 0;
        for (int k = 0; k < 2; k++) {
            for (int32_t i = 0; i < n[k]; i++) count += outputs[k][i] == id;
        }
        for (int32_t i = 0; i < h->n_prompt; i++) in_prompt += h->prompt[i] == id;
        if (count + in_prompt > 0) z[id] = z[id] > 0 ? z[id] / p->repetition_penalty : z[id] * p->repetition_penalty;
        z[id] -= p->frequency_penalty * (float)count;
        if (count > 0) z[id] -= p->presence_penalty;
    }
}

static void check_same_choice(const Choice *a, const Choice *b)
{
    assert_int_equal(a->token, b->token);
    assert_true(a->logprob == b->logprob && a->n_top == b->n_top);
    assert_memory_equal(a->top_id, b->top_id, sizeof a->top_id);
    assert_memory_equal(a->top_logprob, b->top_logprob, sizeof a->top_logprob);
}

/* Penalised logits give what the same logits, penalised beforehand, give without a penalty. */
static void penalties_are_the_formula(void **state)
{
    float z[PENALTY_IDS], penalised[PENALTY_IDS];
    int32_t past[MAX_PAST];
    Random r = { 16 };
    Chooser *c = open_chooser(PENALTY_IDS);
    for (int k = 0; k < 3000; k++) {
        SampleParams p = PLAIN, q = PLAIN;
        p.n_logprobs = q.n_logprobs = MAX_TOP_LOGPROBS;
        p.temperature = q.temperature = k % 2 ? 0.8f : 0;
        if (k % 3) p.repetition_penalty = 0.5f + (float)random_unit(&r);
        if (k % 4) p.presence_penalty = 4 * (float)random_unit(&r) - 2;
        if (k % 5) p.frequency_penalty = 4 * (float)random_unit(&r) - 2;
        for (int i = 0; i < PENALTY_IDS; i++) z[i] = 3 * random_normal(&r);
        for (int i = 0; i < MAX_PAST; i++)
            past[i] = random_below(&r, PENALTY_IDS + 10); /* some are no ids of this vocabulary */
        History h = {
            past, past + 100, past + 200, random_below(&r, 100), random_below(&r, 100), random_below(&r, MAX_PAST - 200)
        };
        RowRule rule = rule_of(&p), bare = rule_of(&q);
        rule.history = &h;
        memcpy(penalised, z, sizeof z);
        oracle_penalties(penalised, &h, &p);
        Choice got, want;
        DrawKey key = { (uint64_t)k, 0 };
        choose(c, z, &rule, key, 77, &got);
        choose(c, penalised, &bare, key, 77, &want); /* also: nothing of the first call is left behind */
        check_same_choice(&got, &want);
    }
    chooser_close(c);
}

/* A drafted row's path counts as output: it makes no difference which tokens are already committed. */
static void path_counts_as_output(void **state)
{
    float z[PENALTY_IDS];
    int32_t past[60];
    Random r = { 17 };
    Chooser *c = open_chooser(PENALTY_IDS);
    SampleParams p = PLAIN;
    p.presence_penalty = 1.5f;
    p.frequency_penalty = 0.3f;
    p.repetition_penalty = 1.2f;
    p.n_logprobs = MAX_TOP_LOGPROBS;
    for (int k = 0; k < 200; k++) {
        for (int i = 0; i < PENALTY_IDS; i++) z[i] = 2 * random_normal(&r);
        for (int i = 0; i < COUNT(past); i++) past[i] = random_below(&r, PENALTY_IDS);
        Choice first = { 0 };
        for (int32_t n_path = 0; n_path <= 30; n_path++) {
            History h = { past, past + 20, past + COUNT(past) - n_path, 20, 40 - n_path, n_path };
            RowRule rule = rule_of(&p);
            rule.history = &h;
            Choice out;
            choose(c, z, &rule, (DrawKey){ (uint64_t)k, 1 }, 60, &out);
            if (n_path == 0) first = out;
            check_same_choice(&out, &first);
        }
    }
    chooser_close(c);
}

/* ---- reports ---- */

static void logprobs_are_log_softmax(void **state)
{
    static float z[MAX_VOCAB];
    Random r = { 18 };
    Chooser *c = open_chooser(MAX_VOCAB);
    for (int k = 0; k < 50; k++) {
        double sum = 0, max = -1e30;
        for (int i = 0; i < MAX_VOCAB; i++) z[i] = 4 * random_normal(&r) + 300;
        for (int i = 0; i < MAX_VOCAB; i++) max = fmax(max, (double)z[i]);
        for (int i = 0; i < MAX_VOCAB; i++) sum += exp((double)z[i] - max);
        SampleParams p = PLAIN;
        p.temperature = 0.01f + (float)(k % 3); /* temperature and filters do not touch what is reported */
        p.top_k = k % 2 ? 5 : 0;
        p.n_logprobs = k % (MAX_TOP_LOGPROBS + 1);
        if (p.temperature > 2) p.temperature = 0;
        RowRule rule = rule_of(&p);
        Choice out;
        choose(c, z, &rule, (DrawKey){ (uint64_t)k, 0 }, 0, &out);
        assert_true(fabs((double)out.logprob - ((double)z[out.token] - max - log(sum))) < 2e-5);
        assert_int_equal(out.n_top, p.n_logprobs);
        for (int i = 0; i < out.n_top; i++) {
            assert_true(fabs((double)out.top_logprob[i] - ((double)z[out.top_id[i]] - max - log(sum))) < 2e-5);
            assert_true(i == 0 || z[out.top_id[i]] < z[out.top_id[i - 1]] ||
                        (z[out.top_id[i]] == z[out.top_id[i - 1]] && out.top_id[i] > out.top_id[i - 1]));
            if (out.top_id[i] == out.token) assert_true(out.top_logprob[i] == out.logprob);
        }
    }
    chooser_close(c);
}

static void masked_ids_are_not_reported(void **state)
{
    float z[4] = { 9, 1, 1, 8 };
    uint32_t mask = 6;
    SampleParams p = PLAIN;
    p.n_logprobs = 4;
    Chooser *c = open_chooser(4);
    RowRule rule = rule_of(&p);
    rule.mask = &mask;
    Choice out;
    choose(c, z, &rule, (DrawKey){ 3, 0 }, 0, &out);
    assert_int_equal(out.n_top, 2);
    assert_int_equal(out.top_id[0], 1);
    assert_true(fabsf(out.logprob + 0.6931472f) < 1e-6f);
    chooser_close(c);
}

static void broken_rows_are_noticed(void **state)
{
    enum { N = 70 };
    static const float broken[] = { NAN, -NAN, INFINITY };
    float z[N];
    uint32_t none[3] = { 0 };
    Choice out;
    Chooser *c = open_chooser(N);
    RowRule rule = rule_of(&PLAIN);
    rule.n_valid = 60;
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < COUNT(broken); k++) {
            for (int j = 0; j < N; j++) z[j] = j == i ? broken[k] : 1;
            choose(c, z, &rule, (DrawKey){ 0, 0 }, 0, &out);
            assert_false(out.is_finite);
            assert_int_equal(out.token, -1);
        }
    }
    for (int j = 0; j < N; j++) z[j] = -INFINITY;
    choose(c, z, &rule, (DrawKey){ 0, 0 }, 0, &out);
    assert_false(out.is_finite);
    z[59] = -3e38f; /* one id is left */
    choose(c, z, &rule, (DrawKey){ 0, 0 }, 0, &out);
    assert_true(out.is_finite && out.token == 59);
    rule.mask = none;
    choose(c, z, &rule, (DrawKey){ 0, 0 }, 0, &out);
    assert_false(out.is_finite);
    chooser_close(c);
}

static void overflowing_penalty_is_noticed(void **state)
{
    float z[3] = { 3e38f, 1, 2 };
    int32_t past = 0;
    History h = { .output = &past, .n_output = 1 };
    SampleParams p = PLAIN;
    p.repetition_penalty = 0.01f;
    Chooser *c = open_chooser(3);
    RowRule rule = rule_of(&p);
    rule.history = &h;
    Choice out;
    choose(c, z, &rule, (DrawKey){ 0, 0 }, 0, &out);
    assert_false(out.is_finite);
    chooser_close(c);
}

/* ---- parameters and memory ---- */

typedef struct BadParams {
    SampleParams p;
    const char  *param, *text;
} BadParams;

static void bad_params_are_named(void **state)
{
    static const LogitBias outside[] = { { 100, 1 } }, loud[] = { { 5, 101 } };
#define WITH(...) { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, __VA_ARGS__ }
    const BadParams bad[] = {
        { { .temperature = 7, .top_p = 1, .repetition_penalty = 1 },
          "temperature",
          "temperature must be in [0, 2], got 7" },
        { { .temperature = -0.5f, .top_p = 1, .repetition_penalty = 1 },
          "temperature",
          "temperature must be in [0, 2], got -0.5" },
        { { .temperature = NAN, .top_p = 1, .repetition_penalty = 1 },
          "temperature",
          "temperature must be in [0, 2], got nan" },
        { { .top_p = 0, .repetition_penalty = 1 }, "top_p", "top_p must be in (0, 1], got 0" },
        { { .top_p = 1.5f, .repetition_penalty = 1 }, "top_p", "top_p must be in (0, 1], got 1.5" },
        { WITH(.min_p = -1), "min_p", "min_p must be in [0, 1], got -1" },
        { WITH(.top_k = -3), "top_k", "top_k must be 0 (off) or more, got -3" },
        { { .top_p = 1, .repetition_penalty = 0 }, "repetition_penalty", "repetition_penalty must be in [0.001, 1000], got 0" },
        { { .top_p = 1, .repetition_penalty = 1001 }, "repetition_penalty", "repetition_penalty must be in [0.001, 1000], got 1001" },
        { WITH(.presence_penalty = 2.5f), "presence_penalty", "presence_penalty must be in [-2, 2], got 2.5" },
        { WITH(.frequency_penalty = -3), "frequency_penalty", "frequency_penalty must be in [-2, 2], got -3" },
        { { .top_p = 1, .repetition_penalty = 1, .n_logprobs = 21 },
          "top_logprobs",
          "top_logprobs must be in [0, 20], got 21" },
        { WITH(.n_bias = 1, .bias = outside), "logit_bias", "logit_bias must name ids in [0, 100), got 100" },
        { WITH(.n_bias = 1, .bias = loud), "logit_bias", "logit_bias of id 5 must be in [-100, 100], got 101" },
        { WITH(.n_bias = 2000), "logit_bias", "logit_bias must have at most 1024 entries, got 2000" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        Error err = { 0 };
        assert_int_equal(sample_params_check(&bad[i].p, 100, &err), ERR_INPUT);
        assert_string_equal(err.param, bad[i].param);
        assert_string_equal(err.text, bad[i].text);
    }
}

static void good_params_pass(void **state)
{
    static const LogitBias edge[] = { { 0, -100 }, { 99, 100 } };
    const SampleParams good[] = { PLAIN,
                                  { .temperature = 2,
                                    .top_p = 1e-9f,
                                    .min_p = 1,
                                    .top_k = 1 << 30,
                                    .repetition_penalty = 1e-3f,
                                    .presence_penalty = -2,
                                    .frequency_penalty = 2,
                                    .n_logprobs = 20,
                                    .n_bias = 2,
                                    .bias = edge } };
    for (int i = 0; i < COUNT(good); i++) {
        Error err = { 0 };
        assert_int_equal(sample_params_check(&good[i], 100, &err), OK);
        assert_int_equal(err.status, OK);
    }
}

/* Clamping gives what the check lets pass, leaves alone what passed, and moves no further than it must. */
static void clamped_params_pass(void **state)
{
    static const float values[] = { -1e30f, -3, -1, -1e-9f, 0, 1e-9f, 1e-3f, 0.5f, 1, 1.5f, 2, 7, 2000, 1e30f, NAN, INFINITY };
    for (int i = 0; i < N_SAMPLE_RANGES; i++) {
        for (int k = 0; k < COUNT(values); k++) {
            SampleParams p = PLAIN, clamped;
            float *value = (float *)((char *)&p + sample_ranges[i].offset);
            *value = values[k];
            clamped = p;
            sample_params_clamp(&clamped);
            float got = *(float *)((char *)&clamped + sample_ranges[i].offset);
            assert_int_equal(sample_params_check(&clamped, 100, NULL), OK);
            if (!sample_params_check(&p, 100, NULL)) assert_true(got == values[k]);
            else if (values[k] > sample_ranges[i].max) assert_true(got == (float)sample_ranges[i].max);
            else assert_float_equal(got, sample_ranges[i].min, 1e-9);
        }
    }
    SampleParams p = PLAIN;
    p.top_k = -5;
    sample_params_clamp(&p);
    assert_int_equal(p.top_k, 0);
}

static void memory_only_in_open(void **state)
{
    static float z[1000];
    int32_t past[10] = { 1, 2, 3 };
    History h = { past, past, past, 10, 10, 10 };
    SampleParams p = PLAIN;
    p.top_k = 50;
    p.top_p = 0.9f;
    p.min_p = 0.01f;
    p.presence_penalty = 1;
    p.n_logprobs = 5;
    Chooser *c = open_chooser(1000);
    RowRule rule = rule_of(&p);
    rule.history = &h;
    uint64_t before = mem_count();
    for (uint32_t i = 0; i < 10; i++) token_of(c, z, &rule, (DrawKey){ i, 0 }, i);
    assert_int_equal(mem_count() - before, 0);
    chooser_close(c);
    chooser_close(NULL);

    for (int nth = 1;; nth++) { /* the first, second, third ... allocation fails */
        Error err = { 0 };
        mem_fail_at(nth);
        Status s = chooser_open(&c, 1000, &err);
        mem_fail_at(0);
        if (!s) break;
        assert_int_equal(s, ERR_NOMEM);
        assert_null(c);
        assert_true(strlen(err.text) > 0);
    }
    chooser_close(c);
}

static void impossible_vocabularies_are_refused(void **state)
{
    static const int32_t sizes[] = { 0, -5, (1 << 20) + 1 };
    for (int i = 0; i < COUNT(sizes); i++) {
        Chooser *c = NULL;
        Error err = { 0 };
        assert_int_equal(chooser_open(&c, sizes[i], &err), ERR_UNSUPPORTED);
        assert_null(c);
    }
}

int main(void)
{
    numeric_mode_enter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(pairs_are_independent),
        cmocka_unit_test(filtered_draws_follow_the_law_that_is_left),
        cmocka_unit_test(draw_equals_the_formula),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(tiny_temperature_is_greedy),
        cmocka_unit_test(huge_logits_stay_in_order),
        cmocka_unit_test(equal_sums_go_to_the_lower_id),
        cmocka_unit_test(top_k_one_is_greedy),
        cmocka_unit_test(forbidden_ids_are_never_drawn),
        cmocka_unit_test(n_valid_zero_means_all),
        cmocka_unit_test(given_tokens_are_scored_alike),
        cmocka_unit_test(forced_beats_everything),
        cmocka_unit_test(bias_moves_logits),
        cmocka_unit_test(penalties_are_the_formula),
        cmocka_unit_test(path_counts_as_output),
        cmocka_unit_test(logprobs_are_log_softmax),
        cmocka_unit_test(masked_ids_are_not_reported),
        cmocka_unit_test(broken_rows_are_noticed),
        cmocka_unit_test(overflowing_penalty_is_noticed),
        cmocka_unit_test(bad_params_are_named),
        cmocka_unit_test(good_params_pass),
        cmocka_unit_test(clamped_params_pass),
        cmocka_unit_test(memory_only_in_open),
        cmocka_unit_test(impossible_vocabularies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
