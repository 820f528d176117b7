/* Choosing on a device against sampling/choose.c on the same logits: tokens, log-probabilities and lists, every bit; ranks
 * against the scalar functions that drafters use on the host.
 *
 *     check_choose [--seed N] [--large] [--bench]
 *
 * Logits: usual ones, ties, -inf, NaN, huge, denormals; vocabularies that are a multiple of nothing; all rules and filters;
 * rows in any order; histories so long that the list of edits is full before all rows are in it. The logits lie between guard
 * bytes. --large adds vocabularies of 32,003 and 151,936. Over the fake device (support/cpu_device.c) it is a test of
 * row_chooser.c. */
#include "backend/fault.h"
#include "base/clock.h"
#include "base/memory.h"
#include "sampling/noise.h"
#include "sampling/row.h"
#include "sampling/row_chooser.h"
#include "sampling/rules.h"
#include "sampling/softmax.h"
#include "sampling/topk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 70, MAX_RANKS = 300, GUARD_FLOATS = 1024, HISTORY = 40, LONG_HISTORY = 6000, LONG_VOCAB = 9000, MAX_BIAS = 6, MAX_REPORTS = 20 };

typedef struct Rig {
    Backend    *backend;
    RowChooser *chooser;
    Chooser    *host;
    uint64_t    random;
    int32_t     vocab, history; /* ids of a prompt, at most of an output */
    float      *logits;          /* [MAX_ROWS][vocab] */
    float      *device, *device_base, *copy; /* the same there; between guards; a way to the host */
    float      *score;           /* [vocab] */
    uint32_t   *marks;           /* [vocab] */
    int64_t     n_rows, n_failed;
} Rig;

typedef struct RowCase {
    RowRule      rule;
    SampleParams params;
    History      history;
    LogitBias    bias[MAX_BIAS];
    int32_t      banned[3], path[MAX_DEPTH];
    DrawKey      key;
    uint32_t     index;
} RowCase;

static uint32_t next(Rig *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return (uint32_t)(r->random >> 32);
}
static int32_t below(Rig *r, int32_t n)
{
    return (int32_t)(next(r) % (uint32_t)n);
}
static float unit(Rig *r)
{
    return (float)(next(r) >> 8) * 0x1p-24f;
}

/* ---- logits ---- */

enum { FILLS = 9 };

static void fill_row(Rig *r, float *x, int fill)
{
    static const float nasty[] = { 0.0f, -0.0f, 1e-39f, -3e-40f, 3.4e38f, -3.4e38f, -INFINITY, 17.0f };
    for (int32_t i = 0; i < r->vocab; i++) {
        float v = (unit(r) + unit(r) + unit(r) + unit(r) - 2) * 8;
        if (fill == 1) v = (float)below(r, 4);              /* ties */
        if (fill == 2) v = -2.5f;                           /* nothing but ties */
        if (fill == 3 && below(r, 3)) v = -INFINITY;
        if (fill == 4) v = -INFINITY;
        if (fill == 5) v = nasty[below(r, COUNT(nasty))];
        if (fill == 6) v = v * 20;                          /* one far above the rest */
        if (fill == 7) v = v * 1e-39f;                      /* denormals are zero: all tie */
        x[i] = v;
    }
    if (fill == 8) x[below(r, r->vocab)] = below(r, 2) ? NAN : INFINITY;
    if (fill == 3 || fill == 4) x[below(r, r->vocab)] = below(r, 2) ? 1.5f : -INFINITY;
}

static void put_logits(Rig *r, int32_t n_rows)
{
    size_t floats = (size_t)n_rows * (size_t)r->vocab;
    for (int32_t i = 0; i < n_rows; i++) fill_row(r, r->logits + (size_t)i * (size_t)r->vocab, below(r, 3) ? below(r, 2) * 6 : below(r, FILLS));
    backend_upload(r->backend, r->device, r->logits, floats * sizeof(float));
}

static void fail(Rig *r, const char *what, int32_t row, const RowCase *c)
{
    if (r->n_failed++ >= MAX_REPORTS) return;
    printf("FAILED vocabulary %d, row %d: %s (T %g, top_k %d, top_p %g, min_p %g, logprobs %d, penalties %g %g %g, path %d, bias %d, banned %d, valid %d)\n",
           r->vocab, row, what, (double)c->params.temperature, c->params.top_k, (double)c->params.top_p, (double)c->params.min_p,
           c->params.n_logprobs, (double)c->params.repetition_penalty, (double)c->params.presence_penalty,
           (double)c->params.frequency_penalty, c->history.n_path, c->params.n_bias, c->rule.n_banned, c->rule.n_valid);
}

/* ---- rules ---- */

static const int32_t *history_ids(Rig *r)
{
    static int32_t ids[2 * LONG_HISTORY];
    for (int32_t i = 0; i < 2 * r->history; i++) ids[i] = below(r, 2) ? below(r, r->vocab) : below(r, r->vocab < 9 ? r->vocab : 9);
    return ids;
}

static void make_case(Rig *r, RowCase *c, const int32_t *ids)
{
    static const float hot[] = { 0, 0, 1e-6f, 0.3f, 0.7f, 1, 1, 1.3f, 2 }, mass[] = { 1, 1, 1, 1e-6f, 0.1f, 0.5f, 0.9f, 0.999f };
    static const float least[] = { 0, 0, 0, 0.05f, 0.5f, 1 };
    static const int32_t top[] = { 0, 0, 0, 1, 2, 20, 100, 1000, 1 << 30 }, listed[] = { -1, -1, 0, 1, 5, MAX_TOP_LOGPROBS };
    *c = (RowCase){ .rule = { .forced = -1 } };
    SampleParams *p = &c->params;
    *p = (SampleParams){ .temperature = hot[below(r, COUNT(hot))], .top_p = mass[below(r, COUNT(mass))], .min_p = least[below(r, COUNT(least))],
                         .top_k = top[below(r, COUNT(top))], .repetition_penalty = 1, .n_logprobs = listed[below(r, COUNT(listed))] };
    if (!below(r, 3)) p->repetition_penalty = below(r, 8) ? 0.5f + unit(r) : 1e-3f;
    if (!below(r, 3)) p->presence_penalty = 4 * unit(r) - 2;
    if (!below(r, 3)) p->frequency_penalty = 4 * unit(r) - 2;
    for (int32_t i = 0; i < 3; i++) c->banned[i] = below(r, r->vocab);
    for (int32_t i = 0; i < MAX_BIAS; i++) c->bias[i] = (LogitBias){ below(r, r->vocab), 200 * unit(r) - 100 };
    for (int32_t i = 0; i < MAX_DEPTH; i++) c->path[i] = ids[below(r, 2 * r->history)];
    if (!below(r, 4)) p->n_bias = below(r, MAX_BIAS + 1); /* ids may come twice: then the host chooses */
    c->rule.n_banned = below(r, 4) ? 0 : below(r, 4);
    c->rule.n_valid = below(r, 3) ? 0 : 1 + below(r, r->vocab);
    c->key = (DrawKey){ (uint64_t)next(r) << 32 | next(r), next(r) % 16 };
    c->index = next(r) % 5000;
    c->history = (History){ ids, ids + r->history, NULL, r->history, below(r, r->history), 0 };
}

/* A row of the same tree: all is the same but place and path. */
static void make_sister(Rig *r, RowCase *c, const RowCase *first)
{
    *c = *first;
    c->index = next(r) % 5000;
    c->history.n_path = below(r, MAX_DEPTH + 1);
}

static void link_case(RowCase *c)
{
    c->params.bias = c->bias;
    c->rule.params = &c->params;
    c->rule.banned = c->banned;
    c->history.path = c->path;
    c->rule.history = &c->history;
}

static void make_cases(Rig *r, RowCase *cases, int32_t n)
{
    const int32_t *ids = history_ids(r);
    for (int32_t i = 0; i < n; i++) {
        if (i > 0 && below(r, 3)) make_sister(r, &cases[i], &cases[i - 1]);
        else make_case(r, &cases[i], ids);
        if (i > 0 && cases[i].history.n_path) memcpy(cases[i].path + 1, cases[i - 1].path, sizeof cases[i].path - sizeof cases[i].path[0]);
        link_case(&cases[i]);
    }
}

/* ---- choosing ---- */

static bool is_same(const Choice *a, const Choice *b, int32_t n_logprobs)
{
    if (a->is_finite != b->is_finite || a->token != b->token) return false;
    if (!a->is_finite || n_logprobs < 0) return true;
    size_t n = (size_t)a->n_top * sizeof(float);
    return memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0 && a->n_top == b->n_top && memcmp(a->top_id, b->top_id, n) == 0 &&
           memcmp(a->top_logprob, b->top_logprob, n) == 0;
}

static void check_choices(Rig *r, int32_t n_rows)
{
    static RowCase cases[MAX_ROWS];
    put_logits(r, n_rows);
    make_cases(r, cases, n_rows);
    Stream *st = backend_stream(r->backend);
    Tensor logits = tensor_2d(r->device, DT_F32, n_rows, r->vocab);
    row_chooser_begin(r->chooser, logits);
    for (int32_t i = n_rows; i-- > 0;) row_chooser_add(r->chooser, i, &cases[i].rule, cases[i].key, cases[i].index);
    int32_t read = below(r, n_rows);
    row_chooser_read(r->chooser, read);
    row_chooser_queue(r->chooser, st);
    stream_sync(st);
    for (int32_t i = 0; i < n_rows; i++) {
        Choice want, got;
        const float *own = r->logits + (size_t)i * (size_t)r->vocab;
        choose(r->host, own, &cases[i].rule, cases[i].key, cases[i].index, &want);
        row_chooser_choose(r->chooser, i, &cases[i].rule, cases[i].key, cases[i].index, &got);
        r->n_rows++;
        if (!is_same(&got, &want, cases[i].params.n_logprobs)) fail(r, "another choice", i, &cases[i]);
        if (i == read && memcmp(row_chooser_logits(r->chooser, i), own, (size_t)r->vocab * sizeof *own) != 0)
            fail(r, "other logits were read", i, &cases[i]);
    }
}

/* ---- ranking ---- */

/* As a drafter on the host: rules, then logit + weight * noise of ids that are not too far below the best. */
static int32_t rank_on_host(Rig *r, const float *logits, const RowCase *c, float weight, int32_t k, int32_t *id, float *value, float *log_sum)
{
    int32_t n = c->rule.n_valid ? c->rule.n_valid : r->vocab;
    if (!row_is_usable(logits, r->vocab)) return -1;
    memcpy(r->score, logits, (size_t)r->vocab * sizeof *logits);
    if (rules_change(&c->rule)) rules_apply(r->score, n, &c->rule, r->marks);
    if (!row_is_usable(r->score, n)) return -1; /* a penalty overflowed */
    float least = row_max(r->score, n) - RANK_REACH;
    for (int32_t i = 0; i < n && weight > 0; i++)
        r->score[i] = r->score[i] >= least && r->score[i] > -INFINITY ? r->score[i] + weight * gumbel_noise(c->key, c->index, (uint32_t)i) : -INFINITY;
    int32_t found = topk_list(r->score, n, k, id, value);
    *log_sum = found ? softmax_log_sum(r->score, n, value[0]) : 0;
    return found;
}

static void check_ranks(Rig *r, int32_t n_rows)
{
    static RowCase cases[MAX_ROWS];
    static int32_t id[MAX_RANKS];
    static float value[MAX_RANKS], weight[MAX_ROWS];
    int32_t k = 1 + below(r, MAX_RANKS);
    put_logits(r, n_rows);
    make_cases(r, cases, n_rows);
    Stream *st = backend_stream(r->backend);
    row_chooser_begin(r->chooser, tensor_2d(r->device, DT_F32, n_rows, r->vocab));
    for (int32_t i = 0; i < n_rows; i++) {
        weight[i] = below(r, 2) ? unit(r) : 0;
        row_chooser_add_rank(r->chooser, i, k, &cases[i].rule, weight[i], cases[i].key, cases[i].index);
    }
    row_chooser_queue(r->chooser, st);
    stream_sync(st);
    for (int32_t i = 0; i < n_rows; i++) {
        float log_sum;
        if (!row_chooser_is_ranked(r->chooser, i)) continue;
        RowRanks got = row_chooser_ranks(r->chooser, i);
        int32_t n = rank_on_host(r, r->logits + (size_t)i * (size_t)r->vocab, &cases[i], weight[i], k, id, value, &log_sum);
        r->n_rows++;
        bool is_right = got.n == n && (n <= 0 || (!memcmp(got.id, id, (size_t)n * sizeof *id) && !memcmp(got.score, value, (size_t)n * sizeof *value) &&
                                                  !memcmp(&got.log_sum, &log_sum, sizeof log_sum)));
        if (!is_right) fail(r, "other ranks", i, &cases[i]);
    }
}

/* ---- a vocabulary ---- */

static bool guards_are_whole(Rig *r)
{
    size_t n = (size_t)MAX_ROWS * (size_t)r->vocab;
    stream_download(backend_stream(r->backend), r->copy, r->device_base, 2 * GUARD_FLOATS * sizeof(float));
    stream_download(backend_stream(r->backend), r->copy + GUARD_FLOATS, r->device_base + GUARD_FLOATS + n, GUARD_FLOATS * sizeof(float));
    stream_sync(backend_stream(r->backend));
    for (int i = 0; i < 2 * GUARD_FLOATS; i++)
        if (r->copy[i] != 12345.0f) return false;
    return true;
}

static void open_vocab(Rig *r, int32_t vocab)
{
    Error err = { 0 };
    size_t floats = (size_t)MAX_ROWS * (size_t)vocab;
    r->vocab = vocab;
    r->logits = mem_alloc_array(floats, sizeof(float));
    r->score = mem_alloc_array((size_t)vocab, sizeof(float));
    r->marks = mem_alloc_array((size_t)vocab, sizeof *r->marks);
    r->device_base = backend_alloc_device(r->backend, (floats + 2 * GUARD_FLOATS) * sizeof(float));
    r->copy = backend_alloc(r->backend, 2 * GUARD_FLOATS * sizeof(float));
    CHECK(r->logits && r->score && r->marks && r->device_base && r->copy);
    r->device = r->device_base + GUARD_FLOATS;
    for (int i = 0; i < GUARD_FLOATS; i++) r->copy[i] = 12345.0f;
    backend_upload(r->backend, r->device_base, r->copy, GUARD_FLOATS * sizeof(float));
    backend_upload(r->backend, r->device + floats, r->copy, GUARD_FLOATS * sizeof(float));
    Status s = chooser_open(&r->host, vocab, &err);
    if (!s) s = row_chooser_open(&r->chooser, r->backend, vocab, MAX_ROWS, MAX_RANKS, &err);
    if (s) fprintf(stderr, "%s\n", err.text);
    CHECK(!s && row_chooser_is_device(r->chooser));
}

static void close_vocab(Rig *r)
{
    if (!guards_are_whole(r) && r->n_failed++ < MAX_REPORTS) printf("FAILED vocabulary %d: wrote outside the logits\n", r->vocab);
    row_chooser_close(r->chooser);
    chooser_close(r->host);
    backend_free(r->backend, r->device_base);
    backend_free(r->backend, r->copy);
    mem_free(r->logits);
    mem_free(r->score);
    mem_free(r->marks);
}

/* ---- time ---- */

static void bench(Rig *r)
{
    static const struct {
        const char  *name;
        SampleParams p;
    } kinds[] = { { "greedy", { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 } },
                  { "greedy, logprob", { .top_p = 1, .repetition_penalty = 1, .n_logprobs = 0 } },
                  { "T 1", { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 } },
                  { "T 0.7, top-k 20, top-p 0.8", { .temperature = 0.7f, .top_k = 20, .top_p = 0.8f, .repetition_penalty = 1, .n_logprobs = -1 } },
                  { "the same, 20 logprobs", { .temperature = 0.7f, .top_k = 20, .top_p = 0.8f, .repetition_penalty = 1, .n_logprobs = 20 } } };
    static const int32_t rows[] = { 1, 16, 64 };
    enum { RUNS = 50 };
    for (int32_t i = 0; i < MAX_ROWS; i++) fill_row(r, r->logits + (size_t)i * (size_t)r->vocab, 0);
    backend_upload(r->backend, r->device, r->logits, (size_t)MAX_ROWS * (size_t)r->vocab * sizeof(float));
    for (int k = 0; k <= COUNT(kinds); k++)
        for (int w = 0; w < COUNT(rows); w++) {
            bool is_rank = k == COUNT(kinds);
            RowRule rule = { .forced = -1, .params = &kinds[is_rank ? 0 : k].p };
            double start = 0;
            for (int i = -5; i < RUNS; i++) {
                if (i == 0) start = clock_ms();
                row_chooser_begin(r->chooser, tensor_2d(r->device, DT_F32, rows[w], r->vocab));
                for (int32_t n = 0; n < rows[w]; n++) {
                    if (is_rank) row_chooser_add_rank(r->chooser, n, 64, &rule, 0.5f, (DrawKey){ 1, 0 }, (uint32_t)n);
                    else row_chooser_add(r->chooser, n, &rule, (DrawKey){ 1, 0 }, (uint32_t)n);
                }
                row_chooser_queue(r->chooser, backend_stream(r->backend));
                stream_sync(backend_stream(r->backend));
            }
            printf("%-28s %3d rows of %d: %7.1f us, queued and waited for\n", is_rank ? "64 best, coupled" : kinds[k].name, rows[w], r->vocab, (clock_ms() - start) / RUNS * 1e3);
        }
}

int main(int argc, char **argv)
{
    static const int32_t vocabs[] = { 1, 2, 5, 100, 255, 256, 257, 1000, 4095, 4096, 4097, 9001, 32003, 151936 };
    Rig r = { .random = 0x9e3779b97f4a7c15u };
    Error err = { 0 };
    bool is_large = false, is_bench = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--large")) is_large = true;
        else if (!strcmp(argv[i], "--bench")) is_bench = is_large = true;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc) r.random = strtoull(argv[++i], NULL, 0) * 0x9e3779b97f4a7c15u + 1;
        else return fprintf(stderr, "usage: %s [--seed N] [--large] [--bench]\n", argv[0]), 2;
    }
    if (backend_open(&r.backend, &(BackendOptions){ .device = DEVICE_CUDA, .n_workers = 1 }, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    numeric_mode_enter();
    for (int v = 0; v < COUNT(vocabs); v++) {
        if (vocabs[v] > 10000 && !is_large) continue;
        open_vocab(&r, vocabs[v]);
        for (int round = 0; round < (vocabs[v] > 10000 ? 2 : 6); round++) {
            r.history = round == 0 && vocabs[v] > LONG_VOCAB ? LONG_HISTORY : HISTORY;
            check_choices(&r, round ? 1 + below(&r, MAX_ROWS) : MAX_ROWS);
            check_ranks(&r, 1 + below(&r, MAX_ROWS));
        }
        if (is_bench && v == COUNT(vocabs) - 1) bench(&r);
        close_vocab(&r);
    }
    backend_close(r.backend);
    printf("%lld rows chosen for or ranked, %lld failed\n", (long long)r.n_rows, (long long)r.n_failed);
    return r.n_failed != 0;
}
