/* See refuse.h. The child answers through a pipe: its status and its sentence. */
#include "hostile/refuse.h"

#include "models/model.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* Of the 64 MB ten are the program's own, as the plan counts it. */
enum { MAX_SECONDS = 2, MAX_GROWTH_KB = 54 << 10, MAX_ADDRESS_BYTES = 768 << 20 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

typedef struct Verdict {
    Status planned, opened;
    long   growth_kb; /* of resident memory, from the child's start to its peak */
    Error  err;
} Verdict;

/* Cuts a file short when loading begins. */
typedef struct Cut {
    const char *file;
    long        n;
} Cut;

static int n_refused;

static void cut_at_start(void *ctx, uint64_t done, uint64_t total)
{
    const Cut *cut = ctx;
    if (done == 0 && truncate(cut->file, cut->n) != 0) abort();
}

static void limit(int what, rlim_t value)
{
    struct rlimit both = { value, value };
    if (!IS_SANITIZED) setrlimit(what, &both);
}

static Verdict judge(const char *path, const Cut *cut)
{
    Verdict v = { 0 };
    Model *model = NULL;
    Backend *backend = NULL;
    ModelNeeds needs;
    ModelOptions options = { .limits = { .max_rows = 4, .max_outputs = 1, .max_seqs = 1, .max_uncertain_rows = 1 } };
    if (cut) {
        options.progress = cut_at_start;
        options.progress_ctx = (void *)cut;
    }
    Error planned = { 0 };
    v.planned = model_needs(path, &options, &needs, NULL, &planned);
    v.opened = backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, &v.err);
    if (!v.opened) v.opened = model_open(&model, path, backend, &options, &v.err);
    if (v.planned && strcmp(planned.text, v.err.text) != 0) abort(); /* plan and load give one answer */
    model_close(model);
    backend_close(backend);
    return v;
}

static long resident_kb(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*s %ld", &pages) != 1) abort();
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

static void be_child(int to, const char *path, const Cut *cut)
{
    limit(RLIMIT_CPU, MAX_SECONDS);
    limit(RLIMIT_AS, MAX_ADDRESS_BYTES);
    limit(RLIMIT_CORE, 0);
    const long before = resident_kb();
    Verdict v = judge(path, cut);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    v.growth_kb = used.ru_maxrss - before;
    if (write(to, &v, sizeof v) != sizeof v) _exit(9);
    _exit(0);
}

static Verdict ask(const char *path, const Cut *cut, const char *name)
{
    Verdict v = { 0 };
    int ends[2], how;
    if (pipe(ends) != 0) fail_msg("no pipe");
    pid_t child = fork();
    if (child == 0) be_child(ends[1], path, cut);
    close(ends[1]);
    ssize_t got = read(ends[0], &v, sizeof v);
    close(ends[0]);
    while (waitpid(child, &how, 0) < 0 && errno == EINTR);
    if (WIFSIGNALED(how)) fail_msg("%s: ended by signal %d", name, WTERMSIG(how));
    if (got != (ssize_t)sizeof v) fail_msg("%s: no answer, exit %d", name, WEXITSTATUS(how));
    return v;
}

static void check(const char *path, const Cut *cut, const char *name)
{
    Verdict v = ask(path, cut, name);
    size_t n = strlen(v.err.text);
    if (v.opened == OK) fail_msg("%s: opened", name);
    if (n < 10 || strchr(v.err.text, '\n') || v.err.status != v.opened) fail_msg("%s: \"%s\" is no sentence", name, v.err.text);
    if (!IS_SANITIZED && v.growth_kb > MAX_GROWTH_KB) fail_msg("%s: %ld KB", name, v.growth_kb);
    if (getenv("TANDEM_SHOW")) printf("%-60s %6ld KB  %s\n", name, v.growth_kb, v.err.text);
    n_refused++;
}

void refuse(const char *path, const char *format, ...)
{
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    check(path, NULL, name);
}

void refuse_cut_later(const char *path, const char *file, long n, const char *format, ...)
{
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    check(path, &(Cut){ file, n }, name);
}

void accept_model(const char *path, const char *what)
{
    Verdict v = ask(path, NULL, what);
    if (v.planned || v.opened) fail_msg("%s: %s", what, v.err.text);
}

int refused_count(void)
{
    return n_refused;
}

void refused_reset(void)
{
    n_refused = 0;
}

void hostile_write(const char *path, const void *data, size_t n)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd) != 0) fail_msg("cannot write %s", path);
}
