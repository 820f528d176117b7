/* A memory plan for readers: lines with a bar for people, one JSON object for programs. Both come from one list of kinds,
 * which add up to the total. */
#include "engine/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { BAR_CELLS = 60 };

typedef struct KindList {
    PlanKind *at;
    int       n;
} KindList;

/* how: a format, what the size follows from. */
__attribute__((format(printf, 5, 6)))
static void add(KindList *list, const char *name, const char *what, size_t bytes, const char *how, ...)
{
    PlanKind *k = &list->at[list->n++];
    va_list args;
    *k = (PlanKind){ .name = name, .what = what, .bytes = bytes };
    va_start(args, how);
    vsnprintf(k->how, sizeof k->how, how, args);
    va_end(args);
}

static void add_model(KindList *l, const Plan *p)
{
    const EngineOptions *o = &p->engine;
    add(l, "weights", "weights", p->weight_bytes, "as they are computed with");
    add(l, "token_cache", "token caches", p->token_cache_bytes, "%d blocks of %d tokens, %.1f KB each", o->n_blocks,
        o->block_size, (double)p->block_bytes / 1024);
    add(l, "states", "states", p->state_bytes, "%d sequences", o->max_num_seqs);
    add(l, "drafter", "drafter", p->drafter_bytes, "weights and books; its caches are above");
    add(l, "scratch", "scratch", p->scratch_bytes, "passes of up to %d rows", p->limits.max_rows);
    add(l, "pass", "batch", p->pass_bytes, "logits of up to %d rows, drafters' features", p->limits.max_outputs);
    add(l, "tables", "block tables", p->table_bytes, "and their books");
}

int plan_kinds(const Plan *p, PlanKind out[PLAN_MAX_KINDS])
{
    KindList l = { out, 0 };
    add_model(&l, p);
    add(&l, "workers", "workers", p->worker_bytes, "scratch of %d threads that compute", p->n_workers);
    add(&l, "text", "text", p->text_bytes, "tokenizer, template, front workers");
    add(&l, "program", "program", p->program_bytes, "its code, libraries and heap");
    add(&l, "pages", "whole pages", p->page_bytes, "where pieces of megabytes end");
    add(&l, "requests", "requests", p->request_bytes, "at most, while up to %d wait and %d run", p->engine.max_waiting,
        p->engine.max_num_seqs);
    return l.n;
}

int32_t plan_full_requests(const Plan *p)
{
    int32_t blocks = (p->engine.max_model_len + p->engine.block_size - 1) / p->engine.block_size;
    int32_t n = blocks ? p->engine.n_blocks / blocks : 0;
    return n < p->engine.max_num_seqs ? n : p->engine.max_num_seqs;
}

static double mb(size_t bytes)
{
    return (double)bytes / (double)(1 << 20);
}

static int cell_of(size_t bytes, size_t all)
{
    int cell = all ? (int)((double)bytes / (double)all * BAR_CELLS + 0.5) : 0;
    return cell < BAR_CELLS ? cell : BAR_CELLS;
}

/* The next `bytes` of `all`. Ends are rounded, not lengths, so that neighbours meet. */
static void put_cells(char bar[BAR_CELLS], size_t *at, size_t bytes, size_t all, char with)
{
    int first = cell_of(*at, all), end = cell_of(*at + bytes, all);
    memset(bar + first, with, (size_t)(end - first));
    *at += bytes;
}

/* [WWWWDDCCCCCCCCCor....|      ]: all that is available; | is where the budget ends. */
static void put_bar(const Plan *p, Buf *out)
{
    char bar[BAR_CELLS];
    size_t at = 0, all = p->available_bytes, caches = p->token_cache_bytes + p->state_bytes;
    int end = cell_of(p->budget_bytes, all);
    memset(bar, ' ', sizeof bar);
    memset(bar, '.', (size_t)end);
    put_cells(bar, &at, p->weight_bytes, all, 'W');
    put_cells(bar, &at, p->drafter_bytes, all, 'D');
    put_cells(bar, &at, caches, all, 'C');
    put_cells(bar, &at, p->lasting_bytes - at, all, 'o');
    put_cells(bar, &at, p->request_bytes, all, 'r');
    buf_printf(out, "\n  [%.*s|%.*s]\n", end, bar, BAR_CELLS - end, bar + end);
    buf_text(out, "   W weights  D drafter  C caches  o the rest  r requests  . free to use  | the budget ends\n\n");
}

static void line(Buf *out, const char *what, size_t bytes, const char *how)
{
    buf_printf(out, "  %-22s %10.1f MB  %s\n", what, mb(bytes), how);
}

void plan_text(const Plan *p, Buf *out)
{
    char how[128];
    PlanKind kinds[PLAN_MAX_KINDS];
    int n = plan_kinds(p, kinds);
    for (int i = 0; i + 1 < n; i++)
        if (kinds[i].bytes) line(out, kinds[i].what, kinds[i].bytes, kinds[i].how);
    line(out, "lasting", p->lasting_bytes, "held for good once it was used");
    line(out, kinds[n - 1].what, kinds[n - 1].bytes, kinds[n - 1].how);
    snprintf(how, sizeof how, "of %.1f MB: %.0f %% of %.1f MB available", mb(p->budget_bytes), p->memory_fraction * 100,
             mb(p->available_bytes));
    line(out, "total", p->total_bytes, how);
    put_bar(p, out);
    buf_printf(out, "  context of %d tokens a request, %lld tokens of cache in all: %d requests at a time, %d of full length\n",
               p->engine.max_model_len, (long long)p->engine.n_blocks * p->engine.block_size, p->engine.max_num_seqs,
               plan_full_requests(p));
}

void plan_json(const Plan *p, Buf *out)
{
    PlanKind kinds[PLAN_MAX_KINDS];
    int n = plan_kinds(p, kinds);
    const EngineOptions *o = &p->engine;
    buf_text(out, "{");
    for (int i = 0; i < n; i++) buf_printf(out, "\"%s\": %zu, ", kinds[i].name, kinds[i].bytes);
    buf_printf(out, "\"lasting\": %zu, \"total\": %zu, \"budget\": %zu, \"available\": %zu, \"memory_fraction\": %.4g, ",
               p->lasting_bytes, p->total_bytes, p->budget_bytes, p->available_bytes, p->memory_fraction);
    buf_printf(out, "\"block_bytes\": %zu, \"max_model_len\": %d, \"max_num_seqs\": %d, \"max_num_batched_tokens\": %d, ",
               p->block_bytes, o->max_model_len, o->max_num_seqs, o->max_num_batched_tokens);
    buf_printf(out, "\"n_blocks\": %d, \"block_size\": %d, \"cache_tokens\": %lld, \"full_requests\": %d, \"n_workers\": %d}\n",
               o->n_blocks, o->block_size, (long long)o->n_blocks * o->block_size, plan_full_requests(p), p->n_workers);
}
