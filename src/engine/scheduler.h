/* The scheduler: who runs in this step, with how many rows, and who holds which slot and blocks. It knows no device:
 * numbers only. Engine thread only; allocates only in open. */
#pragma once

#include "cache/block_table.h"
#include "cache/slot_pool.h"
#include "engine/request_impl.h"
#include "speculation/controller.h"

typedef struct Scheduler {
    const EngineOptions *options;  /* borrowed */
    Drafter             *drafter;  /* borrowed, may be NULL: told who begins and who leaves */
    Controller          *controller; /* the same, told who begins; set by who opens it */
    BlockTable           table;
    SlotPool             slots;
    Sequence           **running;  /* [max_num_seqs], oldest first */
    int32_t              n_running;
    Sequence            *oldest_waiting, *youngest_waiting;
    uint64_t             next_order, n_preemptions;
} Scheduler;

Status scheduler_open(Scheduler *s, Backend *backend, Drafter *drafter, const EngineOptions *options, int32_t max_entries,
                      Error *err);
void   scheduler_close(Scheduler *s); /* copes with a zeroed one */

void scheduler_add(Scheduler *s, Sequence *seq);    /* new: behind all others */
void scheduler_remove(Scheduler *s, Sequence *seq); /* it ended: its slot and blocks are free */

/* Waiting sequences start while there is a slot, and blocks for all their known tokens. Oldest first; nobody overtakes.
 * Returns how many requests have thereby had all their choices started for the first time. */
int32_t scheduler_admit(Scheduler *s);

/* A block for the next row of every decoding sequence. When blocks run out, the youngest running sequence is put back to
 * waiting and later computes its tokens again. */
void scheduler_make_room(Scheduler *s);

/* Rows that drafts of all sequences together may add to a pass where n_decoding sequences decode. n_other: rows of prompts
 * that will be in it. */
int32_t scheduler_draft_rows(const Scheduler *s, int32_t n_decoding, int32_t *n_other);

/* Prompt rows for seq in this pass, given how many rows and outputs are left in it. */
int32_t scheduler_prompt_rows(const Scheduler *s, const Sequence *seq, int32_t rows_left, int32_t outputs_left);

static inline bool scheduler_is_idle(const Scheduler *s)
{
    return s->n_running == 0 && !s->oldest_waiting;
}

/* Slots, blocks and lists counted again. For tests. */
bool scheduler_check(const Scheduler *s);
