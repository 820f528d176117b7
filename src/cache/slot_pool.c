/* Slot pool: a stack of free slots. A slot's old contents stay where they are: whoever gets it next has no
 * committed tokens, and kernels read the states of such a sequence as zeros. */
#include "cache/slot_pool.h"

#include "base/memory.h"

Status slot_pool_open(SlotPool *p, int32_t n_slots, Error *err)
{
    CHECK(n_slots >= 1 && n_slots <= MAX_SLOTS);
    *p = (SlotPool){ .n_slots = n_slots, .n_free = n_slots };
    p->free_slots = mem_alloc_array((size_t)n_slots, sizeof p->free_slots[0]);
    p->in_use = mem_alloc_array((size_t)n_slots, sizeof p->in_use[0]);
    if (!p->free_slots || !p->in_use) {
        slot_pool_close(p);
        return error_set(err, ERR_NOMEM, "no memory for %d sequence slots", n_slots);
    }
    for (int32_t i = 0; i < n_slots; i++) p->free_slots[i] = n_slots - 1 - i;
    return OK;
}

void slot_pool_close(SlotPool *p)
{
    mem_free(p->free_slots);
    mem_free(p->in_use);
    *p = (SlotPool){ 0 };
}

int32_t slot_pool_take(SlotPool *p)
{
    if (p->n_free == 0) return -1;
    int32_t slot = p->free_slots[--p->n_free];
    p->in_use[slot] = true;
    return slot;
}

void slot_pool_give(SlotPool *p, int32_t slot)
{
    CHECK(slot >= 0 && slot < p->n_slots && p->in_use[slot]);
    p->in_use[slot] = false;
    p->free_slots[p->n_free++] = slot;
}
