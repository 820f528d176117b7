/* Rows for a device, and the way back to the host.
 *
 * What a rule does to a row becomes a list of edits: of the sequence (bans, bias, what prompt and output hold), kept for the
 * rows of one tree, which differ by their paths alone; and of the row's own path, whose entries stand in for those of the
 * sequence. place[id] finds an id's entry in the sequence's list and is all zero when there is none. */
#include "sampling/row_chooser.h"

#include "backend/fault.h"
#include "base/memory.h"
#include "sampling/rules.h"

#include <string.h>

enum { MAX_EDITS = 1 << 16 };
typedef enum RowPlace { ROW_ON_HOST, ROW_CHOSEN, ROW_RANKED } RowPlace;

typedef struct BaseKey {
    const int32_t   *banned, *prompt, *output;
    const LogitBias *bias;
    int32_t          n_banned, n_prompt, n_output, n_bias, n_valid;
    Penalties        penalties;
} BaseKey;

struct RowChooser {
    Chooser   *host;
    Backend   *backend;
    const Ops *ops;      /* NULL: there is no device */
    int32_t    vocab_size, max_rows, max_ranks;
    Tensor     logits;
    float     *read;     /* [max_rows][vocab] copies of rows that the host looks at; memory of both sides */
    RowPlace  *where;    /* [max_rows] */
    bool      *is_read;  /* [max_rows] */
    int32_t   *entry;    /* [max_rows] its number among those chosen, or ranked */

    int32_t    n_chosen, n_ranked, n_edits, k;
    ChooseRow *choose_rows, *rank_rows; /* [max_rows] */
    Choice    *chosen;   /* [max_rows] and these three, of both sides */
    Ranked    *ranked;   /* [max_rows] */
    int32_t   *id;       /* [max_rows][max_ranks] */
    float     *score;
    ScoreEdit *edits;    /* [MAX_EDITS] */

    /* Edits of the sequence that came last, and what they were made of. */
    BaseKey    base;
    bool       has_base;
    int32_t    base_first, base_n;
    int32_t   *place;    /* [vocab] entry of an id, counted from base_first + 1 */
};

/* ---- open ---- */

static bool take_arrays(RowChooser *c)
{
    size_t rows = (size_t)c->max_rows, vocab = (size_t)c->vocab_size, ranks = rows * (size_t)c->max_ranks;
    c->where = mem_alloc_array(rows, sizeof *c->where);
    c->is_read = mem_alloc_array(rows, sizeof *c->is_read);
    c->entry = mem_alloc_array(rows, sizeof *c->entry);
    c->choose_rows = mem_alloc_array(rows, sizeof *c->choose_rows);
    c->rank_rows = mem_alloc_array(rows, sizeof *c->rank_rows);
    c->edits = mem_alloc_array(MAX_EDITS, sizeof *c->edits);
    c->place = mem_alloc_array(vocab, sizeof *c->place);
    c->read = backend_alloc(c->backend, rows * vocab * sizeof(float));
    c->chosen = backend_alloc(c->backend, rows * sizeof *c->chosen);
    if (!c->where || !c->is_read || !c->entry || !c->choose_rows || !c->rank_rows || !c->edits || !c->place) return false;
    if (!c->read || !c->chosen) return false;
    if (ranks == 0) return true;
    c->ranked = backend_alloc(c->backend, rows * sizeof *c->ranked);
    c->id = backend_alloc(c->backend, ranks * sizeof *c->id);
    c->score = backend_alloc(c->backend, ranks * sizeof *c->score);
    return c->ranked && c->id && c->score;
}

Status row_chooser_open(RowChooser **out, Backend *backend, int32_t vocab_size, int32_t max_rows, int32_t max_ranks, Error *err)
{
    *out = NULL;
    RowChooser *c = mem_alloc(sizeof *c);
    if (!c) return error_set(err, ERR_NOMEM, "no memory to choose tokens");
    c->backend = backend;
    c->ops = backend_ops(backend)->choose ? backend_ops(backend) : NULL;
    c->vocab_size = vocab_size;
    c->max_rows = max_rows;
    c->max_ranks = max_ranks;
    Status s = chooser_open(&c->host, vocab_size, err);
    if (!s && c->ops && !take_arrays(c)) s = error_set(err, ERR_NOMEM, "no memory to choose tokens for %d rows", max_rows);
    if (s) {
        row_chooser_close(c);
        return s;
    }
    *out = c;
    return OK;
}

void row_chooser_close(RowChooser *c)
{
    if (!c) return;
    void *host[] = { c->where, c->is_read, c->entry, c->choose_rows, c->rank_rows, c->edits, c->place };
    void *both[] = { c->read, c->chosen, c->ranked, c->id, c->score };
    for (int i = 0; i < COUNT(host); i++) mem_free(host[i]);
    for (int i = 0; i < COUNT(both); i++) backend_free(c->backend, both[i]);
    chooser_close(c->host);
    mem_free(c);
}

bool row_chooser_is_device(const RowChooser *c)
{
    return c->ops != NULL;
}

/* ---- edits ---- */

static void forget_base(RowChooser *c)
{
    for (int32_t i = 0; i < c->base_n; i++) c->place[c->edits[c->base_first + i].id] = 0;
    c->has_base = false;
    c->base_n = 0;
}

/* The sequence's entry for an id, made if there is none; NULL when the list is full. */
static ScoreEdit *base_edit(RowChooser *c, int32_t id)
{
    if (c->place[id]) return &c->edits[c->base_first + c->place[id] - 1];
    if (c->n_edits == MAX_EDITS) return NULL;
    c->edits[c->n_edits++] = (ScoreEdit){ .id = id };
    c->place[id] = ++c->base_n;
    return &c->edits[c->n_edits - 1];
}

static bool mark_ids(RowChooser *c, int32_t n_valid, const int32_t *ids, int32_t n, bool is_prompt)
{
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= n_valid) continue;
        ScoreEdit *e = base_edit(c, ids[i]);
        if (!e) return false;
        if (is_prompt) e->mark |= EDIT_PROMPT;
        else e->mark++;
    }
    return true;
}

static bool has_penalties(const RowRule *rule)
{
    return rule->history && rules_penalise(rule->params);
}

/* Bans, bias, prompt and output. False: too many, or one id has two biases, whose sum depends on their order. */
static bool list_base(RowChooser *c, const RowRule *rule, int32_t n_valid)
{
    const SampleParams *p = rule->params;
    for (int32_t i = 0; i < rule->n_banned; i++) {
        if (rule->banned[i] < 0 || rule->banned[i] >= n_valid) continue;
        ScoreEdit *e = base_edit(c, rule->banned[i]);
        if (!e) return false;
        e->mark |= EDIT_BANNED;
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token >= n_valid) continue;
        ScoreEdit *e = base_edit(c, p->bias[i].token);
        if (!e || e->bias != 0) return false;
        e->bias = p->bias[i].bias;
    }
    if (!has_penalties(rule)) return true;
    const History *h = rule->history;
    return mark_ids(c, n_valid, h->output, h->n_output, false) &&
           (p->repetition_penalty == 1 || mark_ids(c, n_valid, h->prompt, h->n_prompt, true));
}

static BaseKey base_key(const RowRule *rule, int32_t n_valid)
{
    static const History none;
    const History *h = rule->history ? rule->history : &none;
    BaseKey key;
    memset(&key, 0, sizeof key); /* compared as bytes */
    key.banned = rule->banned;
    key.n_banned = rule->n_banned;
    key.bias = rule->params->bias;
    key.n_bias = rule->params->n_bias;
    key.n_valid = n_valid;
    key.penalties = sample_penalties(rule->params);
    key.prompt = h->prompt;
    key.n_prompt = h->n_prompt;
    key.output = h->output;
    key.n_output = h->n_output;
    return key;
}

static bool find_base(RowChooser *c, const RowRule *rule, int32_t n_valid)
{
    BaseKey key = base_key(rule, n_valid);
    if (c->has_base && memcmp(&key, &c->base, sizeof key) == 0) return true;
    forget_base(c);
    int32_t first = c->base_first = c->n_edits;
    c->has_base = list_base(c, rule, n_valid);
    c->base = key;
    if (c->has_base) return true;
    forget_base(c);
    c->n_edits = first;
    return false;
}

/* What the row's path adds: an entry for each of its ids, from the sequence's if it has one. */
static bool list_own(RowChooser *c, const History *h, int32_t n_valid, ChooseRow *out)
{
    out->first_own = c->n_edits;
    for (int32_t i = 0; i < h->n_path; i++) {
        int32_t id = h->path[i];
        if (id < 0 || id >= n_valid) continue;
        ScoreEdit *e = NULL;
        for (int32_t k = out->first_own; k < c->n_edits && !e; k++)
            if (c->edits[k].id == id) e = &c->edits[k];
        if (!e && (c->n_edits == MAX_EDITS || out->n_own == MAX_DEPTH)) return false;
        if (!e) {
            e = &c->edits[c->n_edits++];
            *e = c->place[id] ? c->edits[c->base_first + c->place[id] - 1] : (ScoreEdit){ .id = id };
            out->n_own++;
        }
        e->mark++;
    }
    return true;
}

static bool list_edits(RowChooser *c, const RowRule *rule, ChooseRow *out)
{
    if (!find_base(c, rule, out->n_valid)) return false;
    out->first_edit = c->base_first;
    out->n_edits = c->base_n;
    return !has_penalties(rule) || list_own(c, rule->history, out->n_valid, out);
}

/* ---- a pass ---- */

void row_chooser_begin(RowChooser *c, Tensor logits)
{
    c->logits = logits;
    if (!c->ops) return;
    CHECK(logits.shape[0] <= c->max_rows && logits.shape[1] == c->vocab_size);
    forget_base(c);
    c->n_chosen = c->n_ranked = c->n_edits = c->k = 0;
    memset(c->where, 0, (size_t)c->max_rows * sizeof *c->where);
    memset(c->is_read, 0, (size_t)c->max_rows * sizeof *c->is_read);
}

void row_chooser_read(RowChooser *c, int32_t row)
{
    if (c->ops) c->is_read[row] = true;
}

/* Fills *out for the device; false: this rule is for the host. */
static bool describe_row(RowChooser *c, int32_t row, const RowRule *rule, DrawKey key, uint32_t index, ChooseRow *out)
{
    const SampleParams *p = rule->params;
    int32_t n_valid = rule->n_valid > 0 && rule->n_valid < c->vocab_size ? rule->n_valid : c->vocab_size;
    CHECK(c->where[row] == ROW_ON_HOST);
    *out = (ChooseRow){ .row = row, .n_valid = n_valid, .seed = key.seed, .choice = key.choice, .index = index,
                        .temperature = p->temperature, .top_p = p->top_p, .min_p = p->min_p, .top_k = p->top_k,
                        .n_listed = p->n_logprobs, .penalties = sample_penalties(p) };
    if (!rule->mask && rule->forced < 0 && list_edits(c, rule, out)) return true;
    c->is_read[row] = true;
    return false;
}

void row_chooser_add(RowChooser *c, int32_t row, const RowRule *rule, DrawKey key, uint32_t index)
{
    if (!c->ops || !describe_row(c, row, rule, key, index, &c->choose_rows[c->n_chosen])) return;
    c->where[row] = ROW_CHOSEN;
    c->entry[row] = c->n_chosen++;
}

void row_chooser_add_rank(RowChooser *c, int32_t row, int32_t k, const RowRule *rule, float weight, DrawKey key, uint32_t index)
{
    if (!c->ops) return;
    CHECK(k >= 1 && k <= c->max_ranks && (c->n_ranked == 0 || c->k == k));
    ChooseRow *r = &c->rank_rows[c->n_ranked];
    if (!describe_row(c, row, rule, key, index, r)) return;
    r->temperature = 0;
    r->n_listed = c->k = k;
    r->coupling = weight;
    c->where[row] = ROW_RANKED;
    c->entry[row] = c->n_ranked++;
}

/* Rows that follow each other are one copy. */
static void queue_reads(RowChooser *c, Stream *st)
{
    const size_t row = (size_t)c->vocab_size;
    const int32_t n_rows = (int32_t)c->logits.shape[0];
    for (int32_t first = 0, n; first < n_rows; first += n + 1) {
        for (n = 0; first + n < n_rows && c->is_read[first + n]; n++) {}
        if (n == 0) continue;
        stream_download(st, c->read + (size_t)first * row, tensor_f32(c->logits, first), (size_t)n * row * sizeof(float));
    }
}

void row_chooser_queue(RowChooser *c, Stream *st)
{
    if (!c->ops) return;
    queue_reads(c, st); /* before edits change the logits */
    ChooseJob job = { .logits = c->logits, .n_edits = c->n_edits, .edits = c->edits, .n_rows = c->n_chosen, .rows = c->choose_rows,
                      .chosen = c->chosen };
    if (c->n_chosen > 0) c->ops->choose(st, &job);
    RankJob ranks = { .rows = job, .k = c->k, .ranked = c->ranked, .id = c->id, .score = c->score };
    ranks.rows.n_rows = c->n_ranked;
    ranks.rows.rows = c->rank_rows;
    if (c->n_ranked > 0) c->ops->rank(st, &ranks);
}

/* ---- results ---- */

float *row_chooser_logits(RowChooser *c, int32_t row)
{
    if (!c->ops) return tensor_f32(c->logits, row);
    CHECK(c->is_read[row]);
    return c->read + (size_t)row * (size_t)c->vocab_size;
}

void row_chooser_choose(RowChooser *c, int32_t row, const RowRule *rule, DrawKey key, uint32_t index, Choice *out)
{
    if (!c->ops || c->where[row] != ROW_CHOSEN) {
        choose(c->host, row_chooser_logits(c, row), rule, key, index, out);
        return;
    }
    *out = c->chosen[c->entry[row]];
    if (out->is_finite && rule->params->n_logprobs >= 0)
        FAULT_POINT("choose", tensor_1d(&out->logprob, DT_F32, 1), rule->history ? rule->history->n_path : 0);
}

bool row_chooser_is_ranked(const RowChooser *c, int32_t row)
{
    return c->ops && c->where[row] == ROW_RANKED;
}

RowRanks row_chooser_ranks(const RowChooser *c, int32_t row)
{
    CHECK(row_chooser_is_ranked(c, row));
    int32_t i = c->entry[row];
    return (RowRanks){ .n = c->ranked[i].n, .log_sum = c->ranked[i].log_sum, .id = c->id + (size_t)i * (size_t)c->k,
                       .score = c->score + (size_t)i * (size_t)c->k };
}
