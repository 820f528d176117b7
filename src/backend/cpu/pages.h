/* Zeroed memory, 64-byte aligned, in 2 MB pages from 1 MB on. Any thread. */
#pragma once

#include <stddef.h>

void  *pages_alloc(size_t bytes); /* NULL: none left */
size_t pages_bytes(void *p);      /* what was asked for */
size_t pages_held(size_t bytes);   /* memory that a piece of so many bytes holds once it is touched: whole pages */
void   pages_free(void *p);       /* copes with NULL */

/* Writes to every page that begins in [p, p + bytes), of zeroed memory: from then on they lie in the memory nearest to
 * the calling thread's processor. */
void pages_touch(void *p, size_t bytes);
