/* A step, in this order:
 *
 *     decode shares ──> drafts ──> prompt shares ──> batch ──> forward ──> choose ──> commit ──> observe
 *
 * Decoding is computing known tokens of which there is one, the anchor; a prompt is the same with more of them, and so is
 * what a preempted sequence has to do again. Always, after a step: n_committed == n_ids - 1 for whoever chose a token; blocks
 * cover n_ids; nothing tentative is left. */
#include "engine/step.h"

#include "base/clock.h"
#include "base/memory.h"
#include "engine/plan.h"

#include <string.h>

static bool take_arrays(Step *s)
{
    size_t n = (size_t)s->options->max_num_seqs;
    s->shares = mem_alloc_array(n, sizeof s->shares[0]);
    s->unsorted = mem_alloc_array(n, sizeof s->unsorted[0]);
    s->commits = mem_alloc_array(n, sizeof s->commits[0]);
    s->accepted = mem_alloc_array(n, sizeof s->accepted[0]);
    s->certain_rows = mem_alloc_array((size_t)s->limits.max_rows, sizeof s->certain_rows[0]);
    return s->shares && s->unsorted && s->commits && s->accepted && s->certain_rows;
}

Status step_open(Step *s, Model *model, Backend *backend, Drafter *drafter, Scheduler *scheduler,
                 const EngineOptions *options, Error *err)
{
    *s = (Step){ .model = model,
                 .drafter = drafter,
                 .stream = backend_stream(backend),
                 .scheduler = scheduler,
                 .options = options,
                 .limits = plan_limits(options),
                 .choosing = { .vocab_size = model->info.vocab_size, .options = options } };
    Status status = take_arrays(s) ? OK : error_set(err, ERR_NOMEM, "no memory for the arrays of a step");
    if (!status) status = drafts_open(&s->drafts, drafter, scheduler, options, model->info.vocab_size, err);
    if (!status) status = batch_builder_open(&s->builder, backend, model, drafter, &s->limits, &scheduler->table, err);
    if (!status) status = row_chooser_open(&s->choosing.rows, backend, model->info.vocab_size, s->limits.max_outputs, 0, err);
    if (status) {
        step_close(s);
        return status;
    }
    for (int32_t i = 0; i < s->limits.max_rows; i++) s->certain_rows[i] = i;
    return OK;
}

void step_close(Step *s)
{
    drafts_close(&s->drafts);
    batch_builder_close(&s->builder);
    row_chooser_close(s->choosing.rows);
    mem_free(s->shares);
    mem_free(s->unsorted);
    mem_free(s->commits);
    mem_free(s->accepted);
    mem_free(s->certain_rows);
    *s = (Step){ 0 };
}

/* ---- who runs, with which rows ---- */

static Share *add_share(Step *s, Sequence *seq, SeqPhase phase, int32_t n_rows)
{
    Share *share = &s->unsorted[s->n_shares];
    *share = (Share){ .seq = seq,
                      .phase = phase,
                      .n_rows = n_rows,
                      .method = -1,
                      .n_asked = 1,
                      .is_certain = true,
                      .tree = &s->drafts.trees[s->n_shares],
                      .gives_token = n_rows == sequence_pending(seq),
                      .is_scored = sequence_is_scored(seq) };
    tree_start(share->tree, seq->ids[seq->n_ids - 1]);
    s->n_shares++;
    return share;
}

static void share_decodes(Step *s)
{
    s->n_shares = 0;
    for (int32_t i = 0; i < s->scheduler->n_running; i++) {
        Sequence *seq = s->scheduler->running[i];
        if (sequence_pending(seq) == 1) add_share(s, seq, sequence_has_output(seq) ? SEQ_DECODE : SEQ_PROMPT, 1);
    }
}

/* Shares whose tree grew are verified. Blocks that were reserved for more go back at the end of the step. */
static double share_drafts(Step *s)
{
    double ms = drafts_make(&s->drafts, s->stream, s->unsorted, s->n_shares);
    for (int32_t i = 0; i < s->n_shares; i++) {
        Share *share = &s->unsorted[i];
        if (share->tree->n_nodes == 1) continue;
        share->phase = SEQ_VERIFY;
        share->is_certain = false;
        share->n_rows = share->tree->n_nodes;
    }
    return ms;
}

static void share_prompts(Step *s)
{
    int32_t rows_left = s->limits.max_rows, outputs_left = s->limits.max_outputs;
    for (int32_t i = 0; i < s->n_shares; i++) {
        rows_left -= s->unsorted[i].n_rows;
        outputs_left -= s->unsorted[i].n_rows;
    }
    for (int32_t i = 0; i < s->scheduler->n_running; i++) {
        Sequence *seq = s->scheduler->running[i];
        if (sequence_pending(seq) == 1) continue;
        int32_t n = scheduler_prompt_rows(s->scheduler, seq, rows_left, outputs_left);
        if (n <= 0) continue;
        Share *share = add_share(s, seq, SEQ_PROMPT, n);
        rows_left -= n;
        outputs_left -= share->is_scored ? n : share->gives_token;
    }
}

/* Uncertain shares first, as the batch wants them; else the order stays. */
static void sort_shares(Step *s)
{
    int32_t n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < s->n_shares; i++)
            if (s->unsorted[i].is_certain == (pass == 1)) s->shares[n++] = s->unsorted[i];
}

/* ---- what came of it ---- */

static void count_pass(Step *s, const Share *share)
{
    Request *r = share->seq->request;
    if (share->phase == SEQ_PROMPT) {
        s->counts.prompt_tokens += (uint64_t)share->n_rows;
        return;
    }
    if (r->last_pass != s->counts.passes) r->counted.steps++;
    r->last_pass = s->counts.passes;
    s->counts.draft_tokens += (uint64_t)share->n_rows - 1;
    r->counted.draft_tokens += share->n_rows - 1;
}

static void count_tokens(Step *s, const Share *share, int32_t n_new)
{
    Request *r = share->seq->request;
    if (n_new == 0) return;
    r->last_token_ms = clock_ms();
    if (!r->first_token_ms) r->first_token_ms = r->last_token_ms;
    s->counts.output_tokens += (uint64_t)n_new;
    if (share->is_certain) return;
    s->counts.accepted_tokens += (uint64_t)n_new - 1;
    r->counted.accepted_tokens += n_new - 1;
}

/* Every choice of a request that met logits which are no numbers ends with it. */
static void fail_request(const Share *share)
{
    Request *r = share->seq->request;
    error_set(&r->error, ERR_NUMERIC, "the model gave logits that are not finite after token %d of this request",
              share->seq->n_ids);
    for (int32_t c = 0; c < r->g.n_choices; c++)
        if (r->sequence[c].ended == FINISH_NONE) r->sequence[c].ended = FINISH_ERROR;
}

static void choose_share(Step *s, Share *share)
{
    Sequence *seq = share->seq;
    if (seq->ended != FINISH_NONE) return; /* a sister choice has just failed */
    int32_t n_before = seq->n_ids;
    count_pass(s, share);
    bool is_finite = !share->is_scored || score_prompt(&s->choosing, share);
    if (is_finite && share->gives_token) is_finite = choose_tokens(&s->choosing, share);
    share->n_emitted = seq->n_ids - n_before;
    count_tokens(s, share, share->n_emitted);
    if (!is_finite) fail_request(share);
}

/* Paths of sequences that go on become permanent; the others' entries are nobody's from now on. */
static void commit_shares(Step *s)
{
    int n = 0;
    for (int32_t i = 0; i < s->n_shares; i++) {
        const Share *share = &s->shares[i];
        if (share->is_certain || share->seq->ended != FINISH_NONE) continue;
        s->commits[n++] = (Commit){ .seq = i, .n_path = share->n_path, .path_rows = share->path_rows };
    }
    if (n) s->model->commit(s->model, s->stream, &s->batch, s->commits, n);
}

static Accepted accepted_of(const Step *s, const Share *share)
{
    const Sequence *seq = share->seq;
    int32_t n = share->is_certain ? share->n_rows : share->n_path, next = seq->n_committed + n;
    return (Accepted){ .slot = seq->slot,
                       .first_index = seq->n_committed,
                       .n = n,
                       .next_anchor = next < seq->n_ids ? seq->ids[next] : -1,
                       .tokens = seq->ids + seq->n_committed,
                       .rows = share->is_certain ? s->certain_rows + share->first_row : share->path_rows };
}

static void observe_shares(Step *s)
{
    int n = 0;
    for (int32_t i = 0; i < s->n_shares && s->drafter; i++) {
        const Sequence *seq = s->shares[i].seq;
        if (seq->ended == FINISH_NONE && sequence_is_drafted(seq)) s->accepted[n++] = accepted_of(s, &s->shares[i]);
    }
    if (n) s->drafter->observe(s->drafter, s->stream, &s->batch, s->accepted, n);
}

static void advance_shares(Step *s)
{
    for (int32_t i = 0; i < s->n_shares; i++) {
        Sequence *seq = s->shares[i].seq;
        if (seq->ended != FINISH_NONE) continue;
        seq->n_committed += s->shares[i].is_certain ? s->shares[i].n_rows : s->shares[i].n_path;
        block_table_trim(&s->scheduler->table, seq->slot, seq->n_ids);
    }
}

void step_run(Step *s)
{
    scheduler_make_room(s->scheduler);
    share_decodes(s);
    double draft_ms = share_drafts(s), start = drafts_clock_ms(s->options);
    share_prompts(s);
    sort_shares(s);
    if (s->n_shares == 0) return;
    s->counts.passes++;

    batch_build(&s->builder, s->shares, s->n_shares, &s->batch);
    if (!stream_pass_begin(s->stream, s->model, &s->batch)) s->model->forward(s->model, s->stream, &s->batch);
    stream_pass_end(s->stream);
    choosing_queue(&s->choosing, s->stream, s->shares, s->n_shares, s->batch.logits);
    stream_sync(s->stream); /* the one place where the host waits */
    s->lost = stream_lost(s->stream);
    if (s->lost) return;
    double computed = drafts_clock_ms(s->options);
    for (int32_t i = 0; i < s->n_shares; i++) choose_share(s, &s->shares[i]);
    commit_shares(s);
    observe_shares(s);
    advance_shares(s);
    double end = drafts_clock_ms(s->options);
    s->counts.draft_ms += draft_ms;
    s->counts.forward_ms += computed - start;
    s->counts.choose_ms += end - computed;
    drafts_learn(&s->drafts, s->shares, s->n_shares, draft_ms, end - start);
}
