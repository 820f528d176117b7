/* Scheduler: first come, first served, by age.
 *
 *     waiting (by age) ──admit: slot, blocks for known tokens──> running (by age) ──ended──> gone
 *            ^──────────────────── preempt: the youngest ────────────┘
 *
 * Always: a sequence holds a slot and blocks exactly while it runs; blocks cover its known tokens, so a prompt that was
 * let in never runs out half-way. The pool holds at least one sequence of full length (checked when the engine opens), and
 * only younger sequences are preempted for older ones, so the oldest always goes on and nobody waits for ever. What was
 * preempted is older than everything that was never admitted, hence comes back first. */
#include "engine/scheduler.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

Status scheduler_open(Scheduler *s, Backend *backend, Drafter *drafter, const EngineOptions *options,
                      int32_t max_entries, Error *err)
{
    *s = (Scheduler){ .options = options, .drafter = drafter };
    BlockTableShape shape = { options->max_num_seqs, options->n_blocks, options->block_size, max_entries };
    Status status = block_table_open(&s->table, backend, &shape, err);
    if (!status) status = slot_pool_open(&s->slots, options->max_num_seqs, err);
    if (!status) s->running = mem_alloc_array((size_t)options->max_num_seqs, sizeof s->running[0]);
    if (!status && !s->running) status = error_set(err, ERR_NOMEM, "no memory for the scheduler");
    if (status) scheduler_close(s);
    return status;
}

void scheduler_close(Scheduler *s)
{
    block_table_close(&s->table);
    slot_pool_close(&s->slots);
    mem_free(s->running);
    *s = (Scheduler){ 0 };
}

/* ---- the waiting list ---- */

static void waiting_insert(Scheduler *s, Sequence *seq)
{
    Sequence *before = s->youngest_waiting; /* new ones end up here at once; preempted ones walk */
    while (before && before->order > seq->order) before = before->older;
    seq->older = before;
    seq->younger = before ? before->younger : s->oldest_waiting;
    *(before ? &before->younger : &s->oldest_waiting) = seq;
    *(seq->younger ? &seq->younger->older : &s->youngest_waiting) = seq;
}

static void waiting_take(Scheduler *s, Sequence *seq)
{
    *(seq->older ? &seq->older->younger : &s->oldest_waiting) = seq->younger;
    *(seq->younger ? &seq->younger->older : &s->youngest_waiting) = seq->older;
    seq->older = seq->younger = NULL;
}

void scheduler_add(Scheduler *s, Sequence *seq)
{
    seq->order = ++s->next_order;
    waiting_insert(s, seq);
}

/* ---- running ---- */

static void running_insert(Scheduler *s, Sequence *seq)
{
    int32_t i = s->n_running++;
    for (; i > 0 && s->running[i - 1]->order > seq->order; i--) s->running[i] = s->running[i - 1];
    s->running[i] = seq;
}

/* Takes seq out of the running ones and frees what it held. */
static void leave(Scheduler *s, Sequence *seq)
{
    int32_t i = 0;
    while (s->running[i] != seq) i++;
    s->n_running--;
    for (; i < s->n_running; i++) s->running[i] = s->running[i + 1];
    if (s->drafter && sequence_is_drafted(seq)) s->drafter->forget(s->drafter, seq->slot);
    block_table_trim(&s->table, seq->slot, 0);
    slot_pool_give(&s->slots, seq->slot);
    seq->slot = -1;
    seq->n_committed = 0;
}

void scheduler_remove(Scheduler *s, Sequence *seq)
{
    if (seq->slot >= 0)
        leave(s, seq);
    else
        waiting_take(s, seq);
}

static void preempt(Scheduler *s, Sequence *seq)
{
    log_debug("engine", "preempted request=%llu choice=%d tokens=%d", (unsigned long long)seq->request->g.id,
              seq->choice, seq->n_ids);
    leave(s, seq);
    waiting_insert(s, seq);
    s->n_preemptions++;
}

/* ---- admission ---- */

/* Beyond its own blocks one for every running sequence stays free: else the newcomer would soon be preempted by
 * their growth, its work lost. */
static bool has_blocks_for(const Scheduler *s, const Sequence *seq)
{
    return block_table_blocks_for(&s->table, seq->n_ids) + s->n_running <= block_pool_free_count(s->table.pool);
}

/* True when it was the last choice of its request that had never run. */
static bool start(Scheduler *s, Sequence *seq)
{
    Request *r = seq->request;
    waiting_take(s, seq);
    seq->slot = slot_pool_take(&s->slots);
    CHECK(block_table_reserve(&s->table, seq->slot, seq->n_ids) == OK);
    running_insert(s, seq);
    if (s->drafter && sequence_is_drafted(seq)) s->drafter->begin(s->drafter, seq->slot, r->g.id, seq->choice);
    if (s->controller) controller_begin(s->controller, seq->slot, seq->n_ids);
    if (!r->admitted_ms) r->admitted_ms = clock_ms();
    bool is_first = !seq->was_admitted;
    seq->was_admitted = true;
    return is_first && --r->n_unadmitted == 0;
}

int32_t scheduler_admit(Scheduler *s)
{
    int32_t n_requests = 0;
    Sequence *seq;
    while ((seq = s->oldest_waiting) && s->slots.n_free > 0 && has_blocks_for(s, seq)) n_requests += start(s, seq);
    CHECK(s->n_running > 0 || !s->oldest_waiting); /* an empty machine has room for anyone */
    return n_requests;
}

/* ---- rows of a pass ---- */

void scheduler_make_room(Scheduler *s)
{
    for (int32_t i = 0; i < s->n_running; i++) {
        Sequence *seq = s->running[i];
        while (seq->slot >= 0 && block_table_reserve(&s->table, seq->slot, seq->n_ids)) {
            CHECK(s->n_running > 1);
            preempt(s, s->running[s->n_running - 1]);
        }
    }
}

/* Rows that prompts would take now if nothing were drafted, at most `most`. */
static int32_t prompt_rows(const Scheduler *s, int32_t most)
{
    int32_t n = 0, chunk = s->options->prefill_chunk;
    for (int32_t i = 0; i < s->n_running && n < most; i++) {
        int32_t pending = sequence_pending(s->running[i]);
        if (pending > 1) n += chunk > 0 && pending > chunk ? chunk : pending;
    }
    return n < most ? n : most;
}

int32_t scheduler_draft_rows(const Scheduler *s, int32_t n_decoding, int32_t *n_other)
{
    int32_t left = s->options->max_num_batched_tokens - n_decoding;
    *n_other = prompt_rows(s, left);
    return n_decoding < s->n_running ? left / 2 : left; /* prompts are being computed: drafts must not starve them */
}

/* A prompt is scored by its first choice alone. It is the oldest, and once rows or outputs have limited somebody none are
 * left for younger ones: so no sister has a token before the scores are complete. */
int32_t scheduler_prompt_rows(const Scheduler *s, const Sequence *seq, int32_t rows_left, int32_t outputs_left)
{
    int32_t n = sequence_pending(seq), chunk = s->options->prefill_chunk;
    if (chunk > 0 && n > chunk) n = chunk;
    if (n > rows_left) n = rows_left;
    if (sequence_is_scored(seq) && n > outputs_left) n = outputs_left;
    return outputs_left > 0 ? n : 0;
}

/* ---- check ---- */

static bool check_running(const Scheduler *s, int32_t i)
{
    const Sequence *seq = s->running[i];
    return seq->slot >= 0 && s->slots.in_use[seq->slot] && seq->ended == FINISH_NONE && seq->n_committed < seq->n_ids &&
           (i == 0 || s->running[i - 1]->order < seq->order) &&
           s->table.n_used[seq->slot] <= block_table_blocks_for(&s->table, seq->n_ids);
}

bool scheduler_check(const Scheduler *s)
{
    if (!block_table_check(&s->table) || s->slots.n_free + s->n_running != s->slots.n_slots) return false;
    for (int32_t i = 0; i < s->n_running; i++)
        if (!check_running(s, i)) return false;
    for (int32_t slot = 0; slot < s->slots.n_slots; slot++)
        if (!s->slots.in_use[slot] && s->table.n_used[slot] != 0) return false;
    for (const Sequence *seq = s->oldest_waiting; seq; seq = seq->younger) {
        const Sequence *next = seq->younger;
        if (seq->slot >= 0 || seq->ended != FINISH_NONE) return false;
        if (next ? next->older != seq || next->order <= seq->order : s->youngest_waiting != seq) return false;
    }
    return true;
}
