/* The one door to malloc: counted, and able to fail on demand.
 *
 * Blocks carry no header of ours, so what a library allocated with malloc may be given to mem_free and the
 * other way round. The two counters cost one relaxed atomic each. */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t n_calls;
static atomic_int_fast64_t calls_until_failure; /* <= 0: none planned */

bool mem_may_allocate(void)
{
    atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    if (atomic_load_explicit(&calls_until_failure, memory_order_relaxed) <= 0) return true;
    return atomic_fetch_sub_explicit(&calls_until_failure, 1, memory_order_relaxed) != 1;
}

/* More than PTRDIFF_MAX no system gives, and sanitizers stop at the mere question. */
static bool may_take(size_t bytes)
{
    return mem_may_allocate() && bytes <= PTRDIFF_MAX;
}

void *mem_alloc(size_t bytes)
{
    return may_take(bytes) ? calloc(1, bytes ? bytes : 1) : NULL;
}

void *mem_alloc_array(size_t n, size_t item_bytes)
{
    size_t bytes;
    return size_mul(n, item_bytes, &bytes) ? mem_alloc(bytes) : NULL;
}

void *mem_realloc(void *old, size_t bytes)
{
    return may_take(bytes) ? realloc(old, bytes ? bytes : 1) : NULL;
}

char *mem_strdup(const char *text)
{
    return text ? mem_strndup(text, strlen(text)) : NULL;
}

char *mem_strndup(const char *text, size_t n)
{
    size_t bytes;
    if (!size_add(n, 1, &bytes)) return NULL;
    char *copy = mem_realloc(NULL, bytes);
    if (!copy) return NULL;
    if (n) memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

void mem_free(void *p)
{
    free(p);
}

bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

uint64_t mem_count(void)
{
    return atomic_load_explicit(&n_calls, memory_order_relaxed);
}

void mem_fail_at(int64_t nth_from_now)
{
    atomic_store_explicit(&calls_until_failure, nth_from_now, memory_order_relaxed);
}
