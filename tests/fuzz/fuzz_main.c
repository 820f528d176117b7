/* Fuzzing without libFuzzer: the seeds as they are, then random mutations of them for some seconds.
 *
 *     fuzz_X SEEDS [--seconds N] [--seed S] [--first I]       SEEDS: a directory, or files to be run once each
 *
 * Input i depends on the seeds, S and i alone, so "--seed S --first I --seconds 0" repeats the one that a failure names. */
#include "base/clock.h"
#include "base/memory.h"
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SEEDS = 4096, MAX_BYTES = 1 << 16, HANG_SECONDS = 60 };

typedef struct Bytes {
    uint8_t *data;
    size_t   n;
} Bytes;

static Bytes seeds[MAX_SEEDS];
static int   n_seeds;

static uint64_t           run_seed;
static volatile long long run_number;
static uint64_t           random_state;

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static uint64_t next_random(void) /* splitmix64 */
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t n)
{
    return n ? next_random() % n : 0;
}

/* ---- failures ---- */

static void say_which(void)
{
    char text[96];
    int n = snprintf(text, sizeof text, "fuzz: failed in --seed %llu --first %lld\n", (unsigned long long)run_seed, run_number);
    if (write(STDERR_FILENO, text, (size_t)n) < 0) return;
}

static void on_signal(int number)
{
    if (number == SIGALRM && write(STDERR_FILENO, "fuzz: one input takes too long\n", 31) < 0) _exit(1);
    say_which();
    signal(SIGABRT, SIG_DFL);
    abort();
}

static void watch(void)
{
    static const int deadly[] = { SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL };
    bool has_sanitizer = __sanitizer_set_death_callback != NULL;
    if (has_sanitizer) __sanitizer_set_death_callback(say_which);
    for (int i = 0; i < (has_sanitizer ? 2 : COUNT(deadly)); i++) signal(deadly[i], on_signal);
}

/* ---- seeds ---- */

static void read_seed(const char *path)
{
    FILE *f = fopen(path, "rb");
    Bytes b = { .data = mem_alloc(MAX_BYTES) };
    CHECK(f && b.data && n_seeds < MAX_SEEDS);
    b.n = fread(b.data, 1, MAX_BYTES, f);
    fclose(f);
    seeds[n_seeds++] = b;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted: the order is part of what an input depends on. */
static void read_dir(const char *path)
{
    static char *names[MAX_SEEDS];
    int n = 0;
    DIR *d = opendir(path);
    CHECK(d);
    for (struct dirent *e; n < MAX_SEEDS && (e = readdir(d));) {
        if (e->d_name[0] != '.') names[n++] = mem_strdup(e->d_name);
    }
    closedir(d);
    qsort(names, (size_t)n, sizeof *names, compare_names);
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        read_seed(file);
        mem_free(names[i]);
    }
}

/* ---- mutations ---- */

static void insert(Bytes *b, size_t at, const uint8_t *bytes, size_t n)
{
    if (n > MAX_BYTES - b->n) n = MAX_BYTES - b->n;
    memmove(b->data + at + n, b->data + at, b->n - at);
    memcpy(b->data + at, bytes, n);
    b->n += n;
}

static void erase(Bytes *b, size_t at, size_t n)
{
    memmove(b->data + at, b->data + at + n, b->n - at - n);
    b->n -= n;
}

static void mutate(Bytes *b)
{
    static const uint8_t signs[] = "\"\\{}[]():,.%-#0189eE+ \n\r\t'<|>\x00\x01\x7f\x80\xc3\xed\xff";
    uint8_t copy[64];
    size_t at = below(b->n + 1), n = 1 + below(below(2) ? 4 : sizeof copy), from = below(b->n);
    if (n > b->n - from) n = b->n - from;
    memcpy(copy, b->data + from, n);
    switch (next_random() % 7) {
    case 0: insert(b, at, &signs[below(sizeof signs - 1)], 1); break;
    case 1: insert(b, at, copy, n); break; /* a piece of itself */
    case 2: erase(b, from, n); break;
    case 3: if (at < b->n) b->data[at] ^= (uint8_t)(1u << below(8)); break;
    case 4: if (at < b->n) b->data[at] = signs[below(sizeof signs - 1)]; break;
    case 5: if (at < b->n) b->data[at] = (uint8_t)(b->data[at] + below(9) - 4); break;
    default: { /* a piece of another seed */
        const Bytes *other = &seeds[below((size_t)n_seeds)];
        size_t begin = below(other->n), some = below(other->n - begin + 1);
        insert(b, at, other->data + begin, some < 200 ? some : 200);
    }
    }
}

/* Input number i: the first are the seeds. What it is given has its exact size, so that a sanitizer sees its end. */
static void run_input(long long i)
{
    static uint8_t room[MAX_BYTES];
    run_number = i;
    random_state = run_seed * 0x2545f4914f6cdd1du + (uint64_t)i;
    const Bytes *seed = &seeds[i < n_seeds ? (size_t)i : below((size_t)n_seeds)];
    Bytes b = { room, seed->n };
    memcpy(room, seed->data, seed->n);
    for (size_t k = 1 + below(6); i >= n_seeds && k > 0; k--) mutate(&b);
    uint8_t *exact = mem_alloc(b.n + (b.n == 0));
    CHECK(exact);
    memcpy(exact, b.data, b.n);
    alarm(HANG_SECONDS);
    LLVMFuzzerTestOneInput(exact, b.n);
    alarm(0);
    mem_free(exact);
}

int main(int argc, char **argv)
{
    long long first = 0, i;
    double seconds = -1;
    run_seed = (uint64_t)getpid() << 20 ^ (uint64_t)(clock_ms() * 1e3);
    for (int k = 1; k < argc; k++) {
        struct stat st;
        bool has_value = k + 1 < argc;
        if (has_value && strcmp(argv[k], "--seconds") == 0) seconds = strtod(argv[++k], NULL);
        else if (has_value && strcmp(argv[k], "--seed") == 0) run_seed = strtoull(argv[++k], NULL, 10);
        else if (has_value && strcmp(argv[k], "--first") == 0) first = strtoll(argv[++k], NULL, 10);
        else if (stat(argv[k], &st) == 0 && S_ISDIR(st.st_mode)) read_dir(argv[k]);
        else read_seed(argv[k]);
    }
    if (n_seeds == 0) {
        fprintf(stderr, "usage: %s SEEDS [--seconds N] [--seed S] [--first I]\n", argv[0]);
        return 2;
    }
    watch();
    double end = clock_ms() + 1e3 * seconds;
    for (i = first; seconds < 0 ? i < n_seeds : (i < n_seeds && first == 0) || i == first || clock_ms() < end; i++) run_input(i);
    printf("fuzz: %lld inputs of %d seeds, --seed %llu\n", i - first, n_seeds, (unsigned long long)run_seed);
    return 0;
}
