/* Which processors the workers may use: affinity, --cpuset, a container's limit. */
#include "backend/cpu/processors.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Processors' worth of time that a container grants (cgroup v2), rounded up; `most` when there is no limit.
 * More workers than that would be stopped in the middle of an op until the next period. */
static int granted_cpus(int most)
{
    long long quota, period;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!f) return most;
    int n = fscanf(f, "%lld %lld", &quota, &period); /* "max 100000" reads as nothing */
    fclose(f);
    if (n != 2 || quota <= 0 || period <= 0) return most;
    long long cpus = (quota + period - 1) / period;
    return cpus < most ? (int)cpus : most;
}

/* A number of the list, at *at; -1 when there is none. */
static int parse_cpu(const char **at)
{
    char *end;
    if (**at < '0' || **at > '9') return -1;
    long cpu = strtol(*at, &end, 10);
    *at = end;
    return cpu < CPU_SETSIZE ? (int)cpu : -1;
}

static Status add_range(Processors *p, int first, int last, const cpu_set_t *allowed, Error *err)
{
    for (int cpu = first; cpu <= last; cpu++) {
        if (!CPU_ISSET(cpu, allowed)) {
            return error_set_param(err, ERR_USAGE, "cpuset",
                                   "cpuset names processor %d, which this process may not use", cpu);
        }
        if (p->n == MAX_PROCESSORS) {
            return error_set_param(err, ERR_USAGE, "cpuset", "cpuset names more than %d processors", MAX_PROCESSORS);
        }
        p->cpu[p->n++] = cpu;
    }
    return OK;
}

static Status parse_cpuset(Processors *p, const char *text, const cpu_set_t *allowed, Error *err)
{
    for (const char *at = text;; at++) {
        int first = parse_cpu(&at), last = first;
        if (first >= 0 && *at == '-') {
            at++;
            last = parse_cpu(&at);
        }
        if (first < 0 || last < first || (*at && *at != ',')) {
            return error_set_param(err, ERR_USAGE, "cpuset",
                                   "cpuset must be a list of processors such as 0-3,8, got \"%s\"", text);
        }
        Status s = add_range(p, first, last, allowed, err);
        if (s || !*at) return s;
    }
}

Status processors_find(Processors *p, const char *cpuset, Error *err)
{
    cpu_set_t allowed;
    p->n = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return error_set(err, ERR_IO, "cannot read which processors this process may use");
    }
    if (cpuset) {
        Status s = parse_cpuset(p, cpuset, &allowed, err);
        if (s) return s;
    }
    for (int cpu = 0; !cpuset && cpu < CPU_SETSIZE && p->n < MAX_PROCESSORS; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) p->cpu[p->n++] = cpu;
    }
    p->n_granted = granted_cpus(p->n);
    return OK;
}

bool memory_has_nodes(void)
{
    char nodes[64] = "";
    FILE *f = fopen("/sys/devices/system/node/has_memory", "r"); /* "0", or a list such as 0-1 */
    if (!f) return false;
    bool is_list = fgets(nodes, sizeof nodes, f) && strpbrk(nodes, "-,");
    fclose(f);
    return is_list;
}
