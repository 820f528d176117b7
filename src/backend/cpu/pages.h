/* Zeroed memory, 64-byte aligned, in 2 MB pages from 1 MB on. Any thread. */
#pragma once

#include <stddef.h>

void  *pages_alloc(size_t bytes); /* NULL: none left */
size_t pages_bytes(void *p);      /* what was asked for */
void   pages_free(void *p);       /* copes with NULL */
