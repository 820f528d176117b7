/* The one door to malloc. Everything allocates through here, so a test can count allocations (the
 * decode loop makes none) and fail the first, second, third ... one in turn.
 * Any thread. mem_alloc* give zeroed memory, NULL when there is none; mem_free copes with NULL. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes);
void *mem_alloc_array(size_t n, size_t item_bytes); /* NULL when n * item_bytes overflows */
void *mem_realloc(void *old, size_t bytes);         /* new bytes are NOT zeroed */
char *mem_strdup(const char *text);
char *mem_strndup(const char *text, size_t n); /* exactly n bytes, a NUL behind them */
void  mem_free(void *p);

/* For memory that does not come from malloc (pages of the backend): counts the request; false when a test
 * wants it to fail. */
bool mem_may_allocate(void);

/* *out = a * b; false when that does not fit: sizes from a file or a client go through here. */
bool size_mul(size_t a, size_t b, size_t *out);
bool size_add(size_t a, size_t b, size_t *out);

/* Tests only. The count is of calls that asked for memory, over all threads. */
uint64_t mem_count(void);
void     mem_fail_at(int64_t nth_from_now); /* 1 = the very next one fails, once; 0 = never */
