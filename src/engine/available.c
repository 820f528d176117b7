/* Memory that this process may still take: MemAvailable of /proc/meminfo, which counts page cache that can go, or what
 * the tightest control group above us (v2, or the memory controller of v1) leaves, if that is less: in a container meminfo shows the whole machine. */
#include "engine/plan.h"

#include "base/file.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20, MAX_PATH = 4096 };

/* The file's text, owned; NULL when it cannot be read. */
static char *read_text(const char *root, const char *path, const char *name)
{
    char full[MAX_PATH];
    int n = snprintf(full, sizeof full, "%s%s%s", root, path, name);
    char *text = NULL;
    size_t size = 0;
    return n < (int)sizeof full && file_read(full, MAX_BYTES, &text, &size, NULL) == OK ? text : NULL;
}

/* The number behind `key` at the start of a line, times `unit`; `otherwise` when there is none. */
static uint64_t number_after(const char *text, const char *key, uint64_t unit, uint64_t otherwise)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, key, n)) continue;
        char *end;
        uint64_t value = strtoull(line + n, &end, 10);
        return end == line + n ? otherwise : value * unit;
    }
    return otherwise;
}

static uint64_t number_in(const char *root, const char *path, const char *name, const char *key, uint64_t unit,
                          uint64_t otherwise)
{
    char *text = read_text(root, path, name);
    uint64_t value = text ? number_after(text, key, unit, otherwise) : otherwise;
    mem_free(text);
    return value;
}

/* What one group leaves. Its file pages that were not used lately can be dropped, so they are not counted as taken. */
static uint64_t group_leaves(const char *root, const char *path)
{
    uint64_t max = number_in(root, path, "/memory.max", "", 1, UINT64_MAX); /* "max" is no number: no limit */
    if (max == UINT64_MAX) return max;
    uint64_t used = number_in(root, path, "/memory.current", "", 1, 0);
    uint64_t idle = number_in(root, path, "/memory.stat", "inactive_file ", 1, 0);
    used = used > idle ? used - idle : 0;
    return max > used ? max - used : 0;
}

/* The same under the older hierarchy, where a root without a limit says a number near 2^63. Limits of groups above count
 * there, too: its stat file has the tightest. */
static uint64_t old_group_leaves(const char *root, const char *path)
{
    uint64_t max = number_in(root, path, "/memory.limit_in_bytes", "", 1, UINT64_MAX);
    uint64_t above = number_in(root, path, "/memory.stat", "hierarchical_memory_limit ", 1, UINT64_MAX);
    max = above < max ? above : max;
    if (max > INT64_MAX / 2) return UINT64_MAX;
    uint64_t used = number_in(root, path, "/memory.usage_in_bytes", "", 1, 0);
    uint64_t idle = number_in(root, path, "/memory.stat", "total_inactive_file ", 1, 0);
    used = used > idle ? used - idle : 0;
    return max > used ? max - used : 0;
}

/* Where "N:memory:/path" of /proc/self/cgroup leads; in a container the path may be one of the host's that is not seen here,
 * and its own group is the root. */
static uint64_t old_groups_leave(const char *root, const char *own)
{
    char path[MAX_PATH] = "/sys/fs/cgroup/memory";
    size_t base = strlen(path);
    const char *place = own ? strstr(own, ":memory:/") : NULL;
    uint64_t least = old_group_leaves(root, path);
    if (!place) return least;
    snprintf(path + base, sizeof path - base, "%.*s", (int)strcspn(place + 8, "\n"), place + 8);
    for (char *last; (last = strrchr(path + base, '/')); *last = '\0') {
        uint64_t leaves = old_group_leaves(root, path);
        least = leaves < least ? leaves : least;
    }
    return least;
}

uint64_t plan_available_at(const char *root)
{
    uint64_t least = number_in(root, "/proc/meminfo", "", "MemAvailable:", 1024, UINT64_MAX);
    char path[MAX_PATH] = "/sys/fs/cgroup";
    size_t base = strlen(path);
    char *own = read_text(root, "/proc/self/cgroup", "");
    const char *place = own ? strstr(own, "0::/") : NULL;
    if (place) snprintf(path + base, sizeof path - base, "%.*s", (int)strcspn(place + 3, "\n"), place + 3);
    uint64_t old = old_groups_leave(root, own);
    least = old < least ? old : least;
    mem_free(own);
    for (;;) {
        uint64_t leaves = group_leaves(root, path);
        least = leaves < least ? leaves : least;
        char *last = strrchr(path + base, '/');
        if (!last) break;
        *last = '\0';
    }
    return least == UINT64_MAX ? 0 : least;
}

uint64_t plan_available(void)
{
    return plan_available_at("");
}
