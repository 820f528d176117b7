/* See progress.h. The loader writes atomics and never waits for the drawer; the drawer sleeps on a condition that
 * progress_end() signals, so the end of loading is not delayed by a frame. */
#include "cli/progress.h"

#include "base/clock.h"
#include "base/memory.h"
#include "cli/terminal.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>

enum { QUIET_MS = 500, FRAME_MS = 100, MAX_COLUMNS = 200, BAR_COLUMNS = 16 };

static const double GIB = 1 << 30, MIN_RATE_SECONDS = 0.5; /* a rate of less says nothing */

struct Progress {
    const StackProgress *from;
    pthread_t            thread;
    pthread_mutex_t      mutex;
    pthread_cond_t       ended;
    bool                 has_ended; /* under mutex */
    double               first_byte_ms; /* drawer only; 0 = none seen */
};

/* ---- the line ---- */

static void format_rate(char *out, size_t size, uint64_t done, uint64_t total, double seconds)
{
    double rate = (double)done / seconds;
    long s = (long)((double)(total - done) / rate + 0.5);
    int n = snprintf(out, size, "  %.2f GiB/s  ", rate / GIB);
    if (s < 60) snprintf(out + n, size - (size_t)n, "%ld s left", s);
    else if (s < 3600) snprintf(out + n, size - (size_t)n, "%ld:%02ld min left", s / 60, s % 60);
    else snprintf(out + n, size - (size_t)n, "%ld:%02ld h left", s / 3600, s / 60 % 60);
}

static void format_bar(char out[BAR_COLUMNS + 4], uint64_t done, uint64_t total)
{
    int full = (int)((double)done / (double)total * BAR_COLUMNS);
    char *p = out;
    *p++ = '[';
    for (int i = 0; i < BAR_COLUMNS; i++) *p++ = i < full ? '#' : '.';
    *p++ = ']';
    *p = 0;
}

void progress_format(char *out, size_t size, const char *stage, uint64_t done_bytes, uint64_t total_bytes,
                     double seconds, int columns)
{
    char line[MAX_COLUMNS + 1], bar[BAR_COLUMNS + 4], rate[64] = "";
    if (total_bytes == 0 || strcmp(stage, "weights") != 0) {
        snprintf(line, sizeof line, "loading: %s", stage);
    } else if (done_bytes >= total_bytes) {
        snprintf(line, sizeof line, "loading: %.2f GiB of weights are here, preparing", (double)total_bytes / GIB);
    } else {
        format_bar(bar, done_bytes, total_bytes);
        bool has_rate = seconds >= MIN_RATE_SECONDS && done_bytes > 0;
        int percent = (int)((double)done_bytes / (double)total_bytes * 100);
        if (has_rate) format_rate(rate, sizeof rate, done_bytes, total_bytes, seconds);
        double done = (double)done_bytes / GIB, total = (double)total_bytes / GIB;
        int digits = total < 10 ? 2 : 1; /* so that all of it fits into 80 columns */
        snprintf(line, sizeof line, "loading %s %3d %%  %.*f of %.*f GiB%s", bar, percent, digits, done, digits, total,
                 rate);
    }
    snprintf(out, size, "%.*s", columns > 1 ? columns - 1 : 0, line);
}

/* ---- the thread ---- */

static int stderr_columns(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

/* The cursor goes back to the line's start, so that a log line in between writes over the bar. */
static void draw(Progress *p)
{
    char line[MAX_COLUMNS + 1];
    const char *stage = atomic_load(&p->from->stage);
    uint64_t done = atomic_load_explicit(&p->from->done_bytes, memory_order_relaxed);
    uint64_t total = atomic_load_explicit(&p->from->total_bytes, memory_order_relaxed);
    if (!stage || strcmp(stage, "ready") == 0) return;
    progress_format(line, sizeof line, stage, done, total, (clock_ms() - p->first_byte_ms) / 1e3, stderr_columns());
    fprintf(stderr, "\r%s\033[K\r", line);
}

/* Sleeps; true when loading has ended. */
static bool wait_for_end(Progress *p, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&p->mutex);
    while (!p->has_ended && pthread_cond_timedwait(&p->ended, &p->mutex, &until) == 0) {}
    bool has_ended = p->has_ended;
    pthread_mutex_unlock(&p->mutex);
    return has_ended;
}

static void *progress_main(void *arg)
{
    Progress *p = arg;
    double begin = clock_ms();
    bool drew = false;
    while (!wait_for_end(p, FRAME_MS)) {
        if (p->first_byte_ms == 0 && atomic_load(&p->from->total_bytes) > 0) p->first_byte_ms = clock_ms();
        if (clock_ms() - begin < QUIET_MS) continue;
        draw(p);
        drew = true;
    }
    if (drew) fputs("\r\033[K", stderr);
    return NULL;
}

Progress *progress_begin(const StackProgress *from)
{
    if (!terminal_moves(STDERR_FILENO)) return NULL;
    Progress *p = mem_alloc(sizeof *p);
    if (!p) return NULL; /* loading is what matters */
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    p->from = from;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&p->thread, NULL, progress_main, p) == 0) return p;
    mem_free(p);
    return NULL;
}

void progress_end(Progress *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->has_ended = true;
    pthread_cond_signal(&p->ended);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->mutex);
    mem_free(p);
}
