/* A device module for machines without a device: the CPU's operations behind the face of a module. Its "device" memory is the
 * host's, so what is shown is that the program goes the ways of a device, chooses there with the same results, plans by its
 * memory, and copes with its loss. Logits that tokens were chosen from are NaN when a wait is over: nobody may read them there.
 * Kernels are shown elsewhere (tests/gpu).
 *
 *     FAKE_DEVICE_MB=n      what it can give
 *     FAKE_DEVICE_SYNCS=n   the n-th wait finds it lost, and from then on it chooses nothing
 *     FAKE_DEVICE_FAILS=s   it cannot be opened, and says s */
#include "backend/choose_math.h"
#include "backend/device.h"
#include "sampling/noise.h"
#include "sampling/row.h"
#include "sampling/softmax.h"
#include "sampling/topk.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_IDS = 1 << 18, HEAD_BYTES = 64 };

struct Device {
    long     syncs_left; /* -1: for ever */
    float   *score;      /* [MAX_IDS] of a row that is edited */
    Chooser *chooser;    /* of the vocabulary that came last */
    int32_t  vocab_size;
    size_t   bytes_left;
    Tensor   logits;     /* that were chosen from since the last wait; data NULL: none */
};

static long number_of(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

static void fake_close(Device *d)
{
    chooser_close(d->chooser);
    free(d->score);
    free(d);
}

static const char *fake_open(Device **out, RowCounts *counts)
{
    if (getenv("FAKE_DEVICE_FAILS")) return getenv("FAKE_DEVICE_FAILS");
    Device *d = calloc(1, sizeof *d);
    if (!d || !(d->score = malloc(MAX_IDS * sizeof *d->score))) abort();
    d->syncs_left = number_of("FAKE_DEVICE_SYNCS", -1);
    d->bytes_left = (size_t)number_of("FAKE_DEVICE_MB", 4096) << 20;
    *out = d;
    return NULL;
}

static const char *fake_text(const Device *d)
{
    return "fake device";
}

static void fake_memory(const Device *d, size_t *available, size_t *total)
{
    *available = *total = d->bytes_left;
}

static void fake_sync(Device *d)
{
    if (d->syncs_left > 0) d->syncs_left--;
    for (int64_t r = 0; d->logits.data && r < d->logits.shape[0]; r++)
        memset(tensor_f32(d->logits, r), 0xff, (size_t)d->logits.shape[1] * sizeof(float));
    d->logits.data = NULL;
}

static const char *fake_lost(const Device *d)
{
    return d->syncs_left == 0 ? "the fake device failed, as it was told to" : NULL;
}

/* ---- memory: its size in front of it ---- */

static void *fake_alloc(Device *d, size_t bytes, DeviceMemory kind)
{
    size_t whole = (bytes + HEAD_BYTES + 63) / 64 * 64;
    if (bytes == 0 || bytes > (size_t)1 << 40) return NULL;
    char *p = aligned_alloc(64, whole);
    if (!p) return NULL;
    memset(p, 0, whole);
    memcpy(p, &bytes, sizeof bytes);
    return p + HEAD_BYTES;
}

static size_t fake_free(Device *d, void *p)
{
    size_t bytes;
    memcpy(&bytes, (char *)p - HEAD_BYTES, sizeof bytes);
    free((char *)p - HEAD_BYTES);
    return bytes;
}

static void fake_copy(Device *d, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* ---- weights: the CPU's, by the module's own copy of its code ---- */

static Contract fake_contract(Contract c, int64_t n_in)
{
    return c;
}

static Weight as_cpu(const Weight *w)
{
    Weight own = *w;
    own.device = NULL;
    return own;
}

static void fake_put_rows(Device *d, const Weight *w, int64_t first, int64_t n, const void *rows)
{
    Weight own = as_cpu(w);
    weight_put_rows(&own, first, n, rows, w->contract.mode == MATH_BF16 ? DT_BF16 : DT_F32);
}

static void fake_get_row(Device *d, const Weight *w, int64_t row, float *out)
{
    Weight own = as_cpu(w);
    weight_get_row(&own, row, out);
}

/* ---- choosing ---- */

static void edit_all(float *x, const ChooseRow *r, const ScoreEdit *edits, int32_t n, const float *logits)
{
    for (int32_t i = 0; i < n; i++) x[edits[i].id] = edited(logits[edits[i].id], edits[i], r->penalties);
}

/* The row's scores; NULL: it is broken. */
static float *edited_row(Device *d, const ChooseJob *job, const ChooseRow *r)
{
    int32_t vocab = (int32_t)job->logits.shape[1];
    const float *logits = tensor_f32(job->logits, r->row);
    d->logits = job->logits;
    if (vocab > MAX_IDS) abort();
    memcpy(d->score, logits, (size_t)vocab * sizeof *d->score);
    edit_all(d->score, r, job->edits + r->first_edit, r->n_edits, logits);
    edit_all(d->score, r, job->edits + r->first_own, r->n_own, logits);
    return row_is_usable(logits, vocab) && row_is_usable(d->score, r->n_valid) ? d->score : NULL;
}

static void fake_choose(Stream *st, const ChooseJob *job)
{
    Device *d = *(Device **)st;
    int32_t vocab = (int32_t)job->logits.shape[1];
    if (fake_lost(d)) return;
    if (d->vocab_size != vocab) {
        chooser_close(d->chooser);
        d->vocab_size = vocab;
        if (chooser_open(&d->chooser, vocab, NULL)) abort();
    }
    for (int32_t i = 0; i < job->n_rows; i++) {
        const ChooseRow *r = &job->rows[i];
        SampleParams p = { .temperature = r->temperature, .top_p = r->top_p, .min_p = r->min_p, .top_k = r->top_k, .repetition_penalty = 1,
                           .n_logprobs = r->n_listed };
        RowRule rule = { .forced = -1, .n_valid = r->n_valid, .params = &p };
        const float *x = edited_row(d, job, r);
        job->chosen[i] = (Choice){ .token = -1 };
        if (x) choose(d->chooser, x, &rule, (DrawKey){ r->seed, r->choice }, r->index, &job->chosen[i]);
    }
}

static void fake_rank(Stream *st, const RankJob *job)
{
    Device *d = *(Device **)st;
    for (int32_t i = 0; i < job->rows.n_rows && !fake_lost(d); i++) {
        const ChooseRow *r = &job->rows.rows[i];
        float *x = edited_row(d, &job->rows, r);
        job->ranked[i] = (Ranked){ .n = -1 };
        if (!x) continue;
        float least = row_max(x, r->n_valid) - RANK_REACH;
        DrawKey key = { r->seed, r->choice };
        for (int32_t id = 0; id < r->n_valid && r->coupling > 0; id++)
            x[id] = x[id] >= least ? x[id] + r->coupling * gumbel_noise(key, r->index, (uint32_t)id) : -INFINITY;
        float *score = job->score + (size_t)i * (size_t)job->k;
        int32_t n = topk_list(x, r->n_valid, job->k, job->id + (size_t)i * (size_t)job->k, score);
        job->ranked[i] = (Ranked){ n, n > 0 ? softmax_log_sum(x, r->n_valid, score[0]) : 0 };
    }
}

/* The table comes filled with the CPU's. */
static void fake_fill_ops(Ops *ops)
{
    ops->choose = fake_choose;
    ops->rank = fake_rank;
}

static bool fake_pass_begin(Device *d, const void *model, const Batch *batch)
{
    return false;
}
static void fake_pass_end(Device *d)
{
}
static double fake_bandwidth(Device *d)
{
    return 1e9;
}

__attribute__((visibility("default"))) const DeviceModule *tandem_device_module(void)
{
    static const DeviceModule module = {
        .abi = DEVICE_ABI, .name = "cuda", .open = fake_open, .close = fake_close, .text = fake_text, .memory = fake_memory,
        .fill_ops = fake_fill_ops, .sync = fake_sync, .alloc = fake_alloc, .free = fake_free, .upload = fake_copy,
        .download = fake_copy, .contract = fake_contract, .weight_bytes = weight_bytes, .put_rows = fake_put_rows,
        .get_row = fake_get_row, .pass_begin = fake_pass_begin, .pass_end = fake_pass_end, .read_bandwidth = fake_bandwidth,
        .lost = fake_lost,
    };
    return &module;
}
