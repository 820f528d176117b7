/* What malloc keeps. It raises the size from which a piece gets a mapping of its own with every such piece that is freed, so
 * an arena would keep a loading buffer or a long reply for good; fixed sizes stop that. */
#include "base/trim.h"

#include <malloc.h>

void mem_trim(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 20);
    malloc_trim(0);
}
