/* Log: one event, one line, one write, so lines of several threads never mix.
 *
 * The level is TANDEM_LOG_LEVEL, else what log_level_default() said, else warn; log_level_set() beats both. */
#include "base/log.h"
#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

static const char *const level_name[] = { "error", "warn", "info", "debug" };
static const int journal_priority[] = { 3, 4, 6, 7 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int level;
static bool level_from_environment, under_journal;
static struct timespec start;

static void log_init(void)
{
    clock_gettime(CLOCK_MONOTONIC, &start);
    under_journal = getenv("JOURNAL_STREAM") != NULL;
    const char *want = getenv("TANDEM_LOG_LEVEL");
    atomic_store(&level, LOG_WARN);
    for (int i = 0; want && i < COUNT(level_name); i++) {
        if (strcmp(want, level_name[i]) != 0) continue;
        atomic_store(&level, i);
        level_from_environment = true;
    }
}

void log_level_set(LogLevel l)
{
    pthread_once(&once, log_init);
    atomic_store(&level, (int)l);
}

void log_level_default(LogLevel l)
{
    pthread_once(&once, log_init);
    if (!level_from_environment) atomic_store(&level, (int)l);
}

static double seconds_since_start(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec);
}

/* Adds to line[*n]; too much is cut, with room kept for the newline. */
static void add(char *line, size_t *n, const char *format, va_list args)
{
    size_t room = LINE_BYTES - 1 - *n;
    int wrote = vsnprintf(line + *n, room, format, args);
    if (wrote > 0) *n += (size_t)wrote < room ? (size_t)wrote : room - 1;
}

static void add_text(char *line, size_t *n, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add_text(char *line, size_t *n, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(line, n, format, args);
    va_end(args);
}

void log_write(LogLevel l, const char *area, const char *format, ...)
{
    pthread_once(&once, log_init);
    if ((int)l > atomic_load(&level)) return;

    char line[LINE_BYTES];
    size_t n = 0;
    if (under_journal) add_text(line, &n, "<%d>", journal_priority[l]);
    add_text(line, &n, "%.3f %-5s %s: ", seconds_since_start(), level_name[l], area);
    va_list args;
    va_start(args, format);
    add(line, &n, format, args);
    va_end(args);

    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)line[i] < 0x20) line[i] = ' ';
    }
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0) return; /* nobody is left to tell */
}
