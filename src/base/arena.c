/* Arena: allocations laid one behind the other in chunks, freed all at once.
 *
 *     head -> [chunk 2 |####....] -> [chunk 1 |########] -> NULL
 *
 * Always: used <= limit, counted in whole 64-byte lines, so the limit is a promise about memory and not about
 * what callers asked for. Chunks double, but no chunk is larger than what the limit still allows: an arena
 * whose chunk equals its limit (the step arena) therefore takes one chunk in its life. */
#include "base/arena.h"
#include "base/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LINE = 64 };

struct ArenaChunk {
    ArenaChunk *older;
    char       *data; /* aligned to LINE, behind this header */
    size_t      used, capacity;
};

static size_t round_down(size_t n)
{
    return n & ~(size_t)(LINE - 1);
}

/* Up to whole lines, at least one; 0 when that overflows. */
static size_t lines(size_t bytes)
{
    size_t n;
    return size_add(bytes ? bytes : 1, LINE - 1, &n) ? round_down(n) : 0;
}

void arena_init(Arena *a, size_t chunk_bytes, size_t limit_bytes)
{
    size_t limit = lines(limit_bytes), chunk = lines(chunk_bytes);
    *a = (Arena){ .limit = limit ? limit : round_down(SIZE_MAX), .chunk = chunk ? chunk : LINE };
}

static ArenaChunk *chunk_open(size_t capacity)
{
    size_t bytes;
    if (!size_add(capacity, sizeof(ArenaChunk) + LINE - 1, &bytes)) return NULL;
    ArenaChunk *c = mem_realloc(NULL, bytes); /* not zeroed: each allocation is */
    if (!c) return NULL;
    uintptr_t data = ((uintptr_t)(c + 1) + LINE - 1) & ~(uintptr_t)(LINE - 1);
    *c = (ArenaChunk){ .data = (char *)data, .capacity = capacity };
    return c;
}

/* A chunk with room for `bytes` at the head; the caller has checked the limit. */
static bool grow(Arena *a, size_t bytes)
{
    size_t room = a->limit - a->used;
    size_t capacity = a->chunk < room ? a->chunk : room;
    if (capacity < bytes) capacity = bytes;
    ArenaChunk *c = chunk_open(capacity);
    if (!c) return false;
    c->older = a->head;
    a->head = c;
    a->chunk = capacity <= SIZE_MAX / 2 ? 2 * capacity : capacity;
    return true;
}

void *arena_alloc(Arena *a, size_t bytes)
{
    size_t n = lines(bytes);
    if (n == 0 || n > a->limit - a->used) return NULL;
    if (!a->head || n > a->head->capacity - a->head->used) {
        if (!grow(a, n)) return NULL;
    }
    char *p = a->head->data + a->head->used;
    a->head->used += n;
    a->used += n;
    return memset(p, 0, n);
}

void *arena_alloc_array(Arena *a, size_t n, size_t item_bytes)
{
    size_t bytes;
    return size_mul(n, item_bytes, &bytes) ? arena_alloc(a, bytes) : NULL;
}

static void free_chunks(ArenaChunk *c)
{
    while (c) {
        ArenaChunk *older = c->older;
        mem_free(c);
        c = older;
    }
}

void arena_reset(Arena *a)
{
    a->used = 0;
    if (!a->head) return;
    free_chunks(a->head->older);
    a->head->older = NULL;
    a->head->used = 0;
}

void arena_free(Arena *a)
{
    free_chunks(a->head);
    *a = (Arena){ 0 };
}

char *arena_strndup(Arena *a, const char *text, size_t n)
{
    size_t bytes;
    char *copy = size_add(n, 1, &bytes) ? arena_alloc(a, bytes) : NULL;
    if (copy && n) memcpy(copy, text, n);
    return copy;
}

char *arena_printf(Arena *a, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = n >= 0 ? arena_alloc(a, (size_t)n + 1) : NULL;
    if (!text) return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}
