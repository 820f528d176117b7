/* See draft_auto.h. Whoever is asked is told everything: begin, observe and forget go to all children, so that an idle one
 * can be asked at any time. */
#include "speculation/draft_auto.h"

#include "base/memory.h"

typedef struct AutoDrafter {
    Drafter     face; /* first: the two are converted into one another */
    int         n_children;
    Drafter    *child[AUTO_MAX_CHILDREN];
    int32_t     first[AUTO_MAX_CHILDREN + 1]; /* methods of a child: [first[i], first[i + 1]) */
    DraftMethod methods[MAX_METHODS];
    int32_t    *taps;
} AutoDrafter;

static int child_of(const AutoDrafter *a, int32_t method)
{
    int i = 0;
    CHECK(method >= 0 && method < a->face.n_methods);
    while (method >= a->first[i + 1]) i++;
    return i;
}

/* Job.method counts in the child's own methods during the call. */
static Status auto_draft(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err)
{
    AutoDrafter *a = (AutoDrafter *)d;
    if (n == 0) return OK;
    int k = child_of(a, jobs[0].method);
    for (int i = 0; i < n; i++) {
        CHECK(child_of(a, jobs[i].method) == k);
        jobs[i].method -= a->first[k];
    }
    Status s = a->child[k]->draft(a->child[k], st, jobs, n, err);
    for (int i = 0; i < n; i++) jobs[i].method += a->first[k];
    return s;
}

static int32_t auto_foresee(Drafter *d, const DraftJob *job)
{
    AutoDrafter *a = (AutoDrafter *)d;
    int k = child_of(a, job->method);
    DraftJob own = *job;
    own.method -= a->first[k];
    return a->child[k]->foresee ? a->child[k]->foresee(a->child[k], &own) : -1;
}

static void auto_begin(Drafter *d, int32_t slot, uint64_t request_id, int32_t choice)
{
    AutoDrafter *a = (AutoDrafter *)d;
    for (int i = 0; i < a->n_children; i++) a->child[i]->begin(a->child[i], slot, request_id, choice);
}

static void auto_observe(Drafter *d, Stream *st, const Batch *batch, const Accepted *accepted, int n)
{
    AutoDrafter *a = (AutoDrafter *)d;
    for (int i = 0; i < a->n_children; i++) a->child[i]->observe(a->child[i], st, batch, accepted, n);
}

static void auto_forget(Drafter *d, int32_t slot)
{
    AutoDrafter *a = (AutoDrafter *)d;
    for (int i = 0; i < a->n_children; i++) a->child[i]->forget(a->child[i], slot);
}

static Status auto_fits(const Drafter *d, const ModelInfo *target, Error *err)
{
    const AutoDrafter *a = (const AutoDrafter *)d;
    Status s = OK;
    for (int i = 0; !s && i < a->n_children; i++) s = a->child[i]->fits(a->child[i], target, err);
    return s;
}

static int auto_groups(const Drafter *d, CacheGroup out[MAX_GROUPS])
{
    const AutoDrafter *a = (const AutoDrafter *)d;
    int n = 0;
    for (int i = 0; i < a->n_children; i++) {
        CacheGroup own[MAX_GROUPS];
        int n_own = a->child[i]->groups(a->child[i], own);
        CHECK(n + n_own <= MAX_GROUPS);
        for (int g = 0; g < n_own; g++) out[n++] = own[g];
    }
    return n;
}

static void auto_bind(Drafter *d, const CacheMemory memory[MAX_GROUPS])
{
    AutoDrafter *a = (AutoDrafter *)d;
    for (int i = 0, n = 0; i < a->n_children; i++) {
        CacheGroup own[MAX_GROUPS];
        CacheMemory part[MAX_GROUPS] = { 0 };
        int n_own = a->child[i]->groups(a->child[i], own);
        for (int g = 0; g < n_own; g++) part[g] = memory[n++];
        if (n_own) a->child[i]->bind(a->child[i], part);
    }
}

static void auto_close(Drafter *d)
{
    AutoDrafter *a = (AutoDrafter *)d;
    for (int i = 0; i < a->n_children; i++) drafter_close(a->child[i]);
    mem_free(a->taps);
    mem_free(a);
}

/* ---- opening ---- */

static Status add_methods(AutoDrafter *a, int k, const Drafter *child, Error *err)
{
    DraftMethod own[MAX_METHODS];
    int32_t n = drafter_methods(child, own);
    if (a->face.n_methods + n > MAX_METHODS)
        return error_set(err, ERR_UNSUPPORTED, "at most %d ways of drafting are possible at once", MAX_METHODS);
    for (int32_t m = 0; m < n; m++) {
        DraftMethod *method = &a->methods[a->face.n_methods++];
        *method = own[m];
        method->family = k;
    }
    a->first[k + 1] = a->face.n_methods;
    return OK;
}

static Status join(AutoDrafter *a, Drafter *const *children, int n, Error *err)
{
    int32_t n_taps = 0;
    Status s = OK;
    for (int i = 0; i < n; i++) n_taps += children[i]->n_taps;
    a->taps = n_taps ? mem_alloc_array((size_t)n_taps, sizeof *a->taps) : NULL;
    if (n_taps && !a->taps) return error_set(err, ERR_NOMEM, "no memory for %d drafters", n);
    for (int i = 0; !s && i < n; i++) {
        s = add_methods(a, i, children[i], err);
        for (int32_t t = 0; t < children[i]->n_taps; t++) a->taps[a->face.n_taps + t] = children[i]->taps[t];
        children[i]->tap_column = a->face.n_taps;
        a->face.n_taps += children[i]->n_taps;
        a->face.wants_last_hidden |= children[i]->wants_last_hidden;
    }
    return s;
}

Status drafter_open_auto(Drafter **out, Drafter *const *children, int n, Error *err)
{
    *out = NULL;
    CHECK(n >= 1 && n <= AUTO_MAX_CHILDREN);
    AutoDrafter *a = mem_alloc(sizeof *a);
    if (!a) return error_set(err, ERR_NOMEM, "no memory for %d drafters", n);
    a->face = (Drafter){ .name = "auto", .methods = a->methods, .fits = auto_fits, .groups = auto_groups, .bind = auto_bind,
                         .begin = auto_begin, .observe = auto_observe, .draft = auto_draft, .foresee = auto_foresee,
                         .forget = auto_forget, .close = auto_close };
    Status s = join(a, children, n, err);
    if (s) {
        auto_close(&a->face); /* it has no children yet */
        return s;
    }
    a->face.taps = a->taps;
    memcpy(a->child, children, (size_t)n * sizeof *children);
    a->n_children = n;
    *out = &a->face;
    return OK;
}
