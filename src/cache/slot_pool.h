/* Slots: the places of running sequences in block tables and per-sequence states. Engine thread only. */
#pragma once

#include "base/error.h"

#include <stdint.h>

enum { MAX_SLOTS = 4096 };

typedef struct SlotPool {
    int32_t  n_slots, n_free;
    int32_t *free_slots; /* [n_slots], the first n_free are free */
    bool    *in_use;     /* [n_slots] */
} SlotPool;

Status  slot_pool_open(SlotPool *p, int32_t n_slots, Error *err);
void    slot_pool_close(SlotPool *p);      /* copes with a zeroed one */
int32_t slot_pool_take(SlotPool *p);       /* -1: none free */
void    slot_pool_give(SlotPool *p, int32_t slot);
