/* Memory that lives as long as the process, in 2 MB pages where the system gives them.
 *
 * Weights are read once a step from end to end; with 4 KB pages the page walks cost up to a third of the
 * bandwidth. A piece from 1 MB on gets mappings of its own, aligned to 2 MB and marked for huge pages as far
 * as those are full: with the rest in one, too, the matrices of an 8B model hold 200 MB that nobody uses.
 * Smaller pieces come from the heap. Sizes stand in a header of 64 bytes before the piece; for mapped pieces
 * it has a page to itself, so that the data begins on the 2 MB line:
 *
 *     | unmapped | ... header | data, whole 2 MB pages ... | the rest, small pages | unmapped |
 *                             ^ 2 MB line
 *
 * Small pages are of 4 KB on most machines, of 64 KB with some kernels for Arm: what is unmapped ends and begins
 * where both do, or the header would go with the page before it. */
#include "backend/cpu/pages.h"

#include "base/memory.h"

#include <sys/mman.h>

enum { HEADER_BYTES = 64, SMALL_PAGE_BYTES = 4096, HEADER_PAGE_BYTES = 64 << 10, HUGE_BYTES = 2 << 20, MAPPED_FROM_BYTES = 1 << 20 };

typedef struct Header {
    size_t bytes;        /* asked for */
    size_t mapped_bytes; /* header page included; 0: from the heap */
    void  *heap_block;
} Header;

static Header *header_of(void *p)
{
    return (Header *)((char *)p - HEADER_BYTES);
}

static char *align_up(char *p, size_t alignment)
{
    return (char *)(((uintptr_t)p + alignment - 1) & ~(uintptr_t)(alignment - 1));
}

static void *small_alloc(size_t bytes)
{
    char *block = mem_alloc(bytes + 2 * HEADER_BYTES);
    if (!block) return NULL;
    char *p = align_up(block, HEADER_BYTES) + HEADER_BYTES;
    *header_of(p) = (Header){ bytes, 0, block };
    return p;
}

/* Up to whole pages; false: too much. */
static bool whole_pages(size_t bytes, size_t page, size_t *whole)
{
    if (!size_add(bytes, page - 1, whole)) return false;
    *whole &= ~(page - 1);
    return true;
}

static void *mapped_alloc(size_t bytes)
{
    size_t data_bytes, whole;
    if (!mem_may_allocate() || !whole_pages(bytes, HEADER_PAGE_BYTES, &data_bytes)) return NULL;
    if (!size_add(data_bytes, HUGE_BYTES + HEADER_PAGE_BYTES, &whole)) return NULL;

    char *map = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return NULL;
    char *p = align_up(map + HEADER_PAGE_BYTES, HUGE_BYTES);
    char *first = p - HEADER_PAGE_BYTES, *end = p + data_bytes;
    if (first > map) munmap(map, (size_t)(first - map));
    if (end < map + whole) munmap(end, (size_t)(map + whole - end));
    size_t full = bytes & ~(size_t)(HUGE_BYTES - 1);
    if (full) madvise(p, full, MADV_HUGEPAGE); /* advice: without it we are slower, not wrong */
    *header_of(p) = (Header){ bytes, HEADER_PAGE_BYTES + data_bytes, NULL };
    return p;
}

void *pages_alloc(size_t bytes)
{
    return bytes < MAPPED_FROM_BYTES ? small_alloc(bytes) : mapped_alloc(bytes);
}

size_t pages_held(size_t bytes)
{
    size_t up;
    return bytes < MAPPED_FROM_BYTES || !whole_pages(bytes, SMALL_PAGE_BYTES, &up) ? bytes : up;
}

size_t pages_bytes(void *p)
{
    return header_of(p)->bytes;
}

void pages_touch(void *p, size_t bytes)
{
    char *end = (char *)p + bytes;
    for (char *page = align_up(p, SMALL_PAGE_BYTES); page < end; page += SMALL_PAGE_BYTES) *(volatile char *)page = 0;
}

void pages_free(void *p)
{
    if (!p) return;
    Header h = *header_of(p);
    if (h.mapped_bytes) munmap((char *)p - HEADER_PAGE_BYTES, h.mapped_bytes);
    else mem_free(h.heap_block);
}
