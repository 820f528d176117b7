/* The server over a real model and prompt lookup that goes wrong in a way of its own, as a program for test_drafts.py.
 *
 *     serve_drafter MODEL_DIR fails N      from its N-th call on every draft call fails, with a sentence that needs escapes
 *     serve_drafter MODEL_DIR nonsense N   from its N-th call on every tree holds a token that is none
 *     serve_drafter MODEL_DIR poor         it guesses wrong, though much is expected of it
 *
 * Prints the URL, runs until SIGINT or SIGTERM, exits like `tandem serve`. */
#include "server/server.h"
#include "speculation/draft_ngram.h"

#include "base/log.h"
#include "base/memory.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 1024, SLOTS = 8, DRAFTS = 7 };

typedef enum Way { FAILS, NONSENSE, POOR } Way;

typedef struct Faulty {
    Drafter     face; /* first: the two are converted into one another */
    Drafter    *lookup;
    DraftMethod method;
    Way         way;
    long        n_calls, good_calls;
} Faulty;

static Status faulty_fits(const Drafter *d, const ModelInfo *target, Error *err)
{
    const Faulty *f = (const Faulty *)d;
    return f->lookup->fits(f->lookup, target, err);
}

static int faulty_groups(const Drafter *d, CacheGroup out[MAX_GROUPS])
{
    return 0;
}

static void faulty_begin(Drafter *d, int32_t slot, uint64_t request_id, int32_t choice)
{
    Faulty *f = (Faulty *)d;
    f->lookup->begin(f->lookup, slot, request_id, choice);
}

static void faulty_observe(Drafter *d, Stream *st, const Batch *batch, const Accepted *accepted, int n)
{
    Faulty *f = (Faulty *)d;
    f->lookup->observe(f->lookup, st, batch, accepted, n);
}

static void spoil(const Faulty *f, const DraftJob *job)
{
    if (f->way == FAILS) return;
    tree_start(job->tree, job->anchor);
    tree_add(job->tree, 0, f->way == NONSENSE ? -5 : (job->anchor + 1) % 1000, 0);
}

static Status faulty_draft(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err)
{
    Faulty *f = (Faulty *)d;
    Status s = f->lookup->draft(f->lookup, st, jobs, n, err);
    if (s || ++f->n_calls <= f->good_calls) return s;
    for (int i = 0; i < n; i++) spoil(f, &jobs[i]);
    return f->way == FAILS ? error_set(err, ERR_NUMERIC, "\"C:\\drafts\" gives numbers that are not finite") : OK;
}

static void faulty_forget(Drafter *d, int32_t slot)
{
    Faulty *f = (Faulty *)d;
    f->lookup->forget(f->lookup, slot);
}

static void faulty_close(Drafter *d)
{
    drafter_close(((Faulty *)d)->lookup);
    mem_free(d);
}

static Status faulty_open(Drafter **out, Way way, long good_calls, Error *err)
{
    NgramOptions options = { .n_slots = SLOTS, .max_model_len = CONTEXT, .max_tokens = DRAFTS };
    Faulty *f = mem_alloc(sizeof *f);
    if (!f) return error_set(err, ERR_NOMEM, "no memory for a drafter");
    f->way = way;
    f->good_calls = good_calls;
    f->method = (DraftMethod){ .name = "lookup", .max_nodes = DRAFTS + 1, .max_depth = DRAFTS, .expected_first = way == POOR ? 0.5f : 0 };
    f->face = (Drafter){ .name = "lookup", .n_methods = 1, .methods = &f->method, .fits = faulty_fits, .groups = faulty_groups,
                         .begin = faulty_begin, .observe = faulty_observe, .draft = faulty_draft, .forget = faulty_forget,
                         .close = faulty_close };
    *out = &f->face;
    return drafter_open_ngram(&f->lookup, &options, err);
}

static Server *server;

static void on_signal(int number)
{
    server_stop(server);
}

static Status serve(const ServerOptions *o, Error *err)
{
    Status s = server_open(&server, o, err);
    if (s) return s;
    struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    printf("%s\n", server_url(server));
    fflush(stdout);
    s = server_run(server, err);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    server_close(server);
    return s;
}

int main(int argc, char **argv)
{
    Error err = { .status = OK };
    if (argc < 3) return 2;
    Way way = strcmp(argv[2], "fails") == 0 ? FAILS : strcmp(argv[2], "nonsense") == 0 ? NONSENSE : POOR;
    ServerOptions o = { .stack = { .model = argv[1], .max_model_len = CONTEXT, .max_num_seqs = SLOTS, .draft_nodes = DRAFTS + 1,
                                   .draft_depth = DRAFTS } };
    log_level_set(LOG_INFO);
    Status s = faulty_open(&o.stack.drafter, way, argc > 3 ? strtol(argv[3], NULL, 10) - 1 : 0, &err);
    if (!s) s = serve(&o, &err);
    if (s) fprintf(stderr, "serve_drafter: %s\n", err.text);
    return s == OK ? 0 : 1;
}
