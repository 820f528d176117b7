/* Memory that is freed all at once. Two kinds of use:
 *   growing   by chunks up to `limit`, freed at the end of a thing: an HTTP job, a template and its rendering
 *   fixed     one chunk, taken at open and carved once: the row arrays of a pass (engine/batch_builder), a drafter's
 * One thread at a time. */
#pragma once

#include "base/error.h"

#include <stddef.h>

typedef struct ArenaChunk ArenaChunk;
typedef struct Arena {
    ArenaChunk *head;      /* chunk in use; older ones behind it */
    size_t      used;      /* bytes handed out */
    size_t      limit;     /* more than this is refused */
    size_t      chunk;     /* size of the next chunk */
} Arena;

/* chunk_bytes are taken at the first allocation; nothing is allocated here. */
void arena_init(Arena *a, size_t chunk_bytes, size_t limit_bytes);
void arena_reset(Arena *a); /* forgets everything, keeps the newest chunk for reuse */
void arena_free(Arena *a);

/* Zeroed, aligned to 64 bytes. NULL when the limit or the system's memory is reached. */
void *arena_alloc(Arena *a, size_t bytes);
void *arena_alloc_array(Arena *a, size_t n, size_t item_bytes);
#define arena_array(a, Type, n) ((Type *)arena_alloc_array((a), (size_t)(n), sizeof(Type)))
char *arena_strndup(Arena *a, const char *text, size_t n); /* exactly n bytes, a NUL behind them */
char *arena_printf(Arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
