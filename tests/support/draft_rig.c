/* See draft_rig.h. */
#include "support/draft_rig.h"

#include "base/memory.h"
#include "support/golden.h"

#include <stdio.h>
#include <string.h>

static DraftRigOptions with_defaults(DraftRigOptions o)
{
    if (!o.n_slots) o.n_slots = 1;
    if (!o.max_tokens) o.max_tokens = 256;
    if (!o.max_rows) o.max_rows = 256;
    if (!o.max_outputs) o.max_outputs = o.max_rows;
    if (!o.max_nodes) o.max_nodes = 65;
    if (!o.n_workers) o.n_workers = 2;
    return o;
}

Status draft_rig_open(DraftRig *rig, const DraftRigOptions *options, Error *err)
{
    const DraftRigOptions o = with_defaults(*options);
    *rig = (DraftRig){ .options = o };
    char dir[4096];
    ModelOptions model = { .dtype = o.dtype,
                           .limits = { o.max_rows, o.max_outputs, o.n_slots, o.n_slots * o.max_nodes } };
    Status s = OK;
    if (o.target[0] == '/') snprintf(dir, sizeof dir, "%s", o.target);
    else s = source_path(dir, sizeof dir, o.target, err);
    if (!s)
        s = backend_open_cpu(&rig->backend, &(BackendOptions){ .n_workers = o.n_workers, .cpu_mask = o.cpu_mask }, err);
    if (!s) s = model_open(&rig->model, dir, rig->backend, &model, err);
    rig->trees = mem_alloc_array((size_t)o.n_slots, sizeof *rig->trees);
    rig->ids = mem_alloc_array((size_t)o.n_slots * (size_t)o.max_tokens, sizeof *rig->ids);
    if (!s && (!rig->trees || !rig->ids)) s = error_set(err, ERR_NOMEM, "no memory for a rig");
    for (int32_t i = 0; i < o.n_slots && !s; i++) s = tree_alloc(&rig->trees[i], o.max_nodes, err);
    if (s) draft_rig_close(rig);
    return s;
}

/* Caches begin as NaN, as the builder's do. */
static void bind_caches(DraftRig *rig)
{
    CacheGroup groups[MAX_GROUPS];
    const CacheMemory *first = &rig->builder->memory[0];
    rig->n_groups = rig->drafter->groups(rig->drafter, groups);
    for (int i = 0; i < rig->n_groups; i++) {
        CHECK(groups[i].kind == CACHE_PER_TOKEN);
        size_t entries = ((size_t)rig->options.n_slots * (size_t)first->max_blocks + 1) * (size_t)first->block_size;
        size_t bytes = entries * groups[i].entry_bytes * (size_t)groups[i].n_layers;
        rig->memory[i] = *first;
        rig->memory[i].block_table = rig->builder->block_table;
        rig->memory[i].layer_bytes = entries * groups[i].entry_bytes;
        rig->memory[i].data = backend_alloc(rig->backend, bytes);
        CHECK(rig->memory[i].data);
        memset(rig->memory[i].data, 0xff, bytes);
    }
    rig->drafter->bind(rig->drafter, rig->memory);
}

void draft_rig_attach(DraftRig *rig, Drafter *drafter)
{
    const DraftRigOptions *o = &rig->options;
    Error err = { 0 };
    rig->drafter = drafter;
    BuilderOptions sizes = { .n_slots = o->n_slots, .max_tokens = o->max_tokens + o->max_nodes, .max_rows = o->max_rows,
                             .max_outputs = o->max_outputs, .n_taps = drafter->n_taps, .taps = drafter->taps,
                             .wants_last_hidden = drafter->wants_last_hidden };
    CHECK(drafter->fits(drafter, &rig->model->info, &err) == OK);
    CHECK(builder_open(&rig->builder, rig->model, &sizes, &err) == OK);
    bind_caches(rig);
}

void draft_rig_detach(DraftRig *rig)
{
    for (int i = 0; i < rig->n_groups; i++) backend_free(rig->backend, rig->memory[i].data);
    rig->n_groups = 0;
    drafter_close(rig->drafter);
    rig->drafter = NULL;
    builder_close(rig->builder);
    rig->builder = NULL;
}

void draft_rig_close(DraftRig *rig)
{
    draft_rig_detach(rig);
    for (int32_t i = 0; rig->trees && i < rig->options.n_slots; i++) tree_free(&rig->trees[i]);
    mem_free(rig->trees);
    mem_free(rig->ids);
    model_close(rig->model);
    backend_close(rig->backend);
    *rig = (DraftRig){ 0 };
}

void draft_rig_begin(DraftRig *rig, int32_t slot)
{
    builder_clear(rig->builder, slot);
    rig->drafter->forget(rig->drafter, slot);
    rig->drafter->begin(rig->drafter, slot, 1000 + (uint64_t)slot, 0);
}

static int32_t *ids_of(const DraftRig *rig, int32_t slot)
{
    return rig->ids + (size_t)slot * (size_t)rig->options.max_tokens;
}

void draft_rig_run(DraftRig *rig, const DraftRigLine *lines, int n)
{
    enum { MAX_LINES = 64, MAX_BATCH_ROWS = 1024 };
    static int32_t rows[MAX_BATCH_ROWS];
    Accepted accepted[MAX_LINES];
    CHECK(n <= MAX_LINES && rig->options.max_rows <= MAX_BATCH_ROWS);
    for (int i = 0; i < MAX_BATCH_ROWS; i++) rows[i] = i;
    builder_begin(rig->builder);
    for (int i = 0; i < n; i++) {
        const DraftRigLine *line = &lines[i];
        int32_t first = rig->builder->n_committed[line->slot];
        CHECK(first + line->n < rig->options.max_tokens);
        memcpy(ids_of(rig, line->slot) + first, line->tokens, (size_t)line->n * sizeof(int32_t));
        int32_t row = builder_line(rig->builder, line->slot, line->tokens, line->n);
        accepted[i] = (Accepted){ .slot = line->slot, .first_index = first, .n = line->n, .next_anchor = -1,
                                  .tokens = line->tokens, .rows = rows + row };
    }
    builder_forward(rig->builder);
    rig->drafter->observe(rig->drafter, backend_stream(rig->backend), &rig->builder->batch, accepted, n);
}

DraftJob draft_rig_job(DraftRig *rig, int32_t slot, int32_t anchor)
{
    int32_t n = rig->builder->n_committed[slot];
    ids_of(rig, slot)[n] = anchor;
    tree_start(&rig->trees[slot], anchor);
    return (DraftJob){ .slot = slot, .n_committed = n, .anchor = anchor, .request_id = 1000 + (uint64_t)slot,
                       .max_nodes = rig->options.max_nodes, .max_depth = MAX_DEPTH - 1, .ids = ids_of(rig, slot),
                       .draw = { 1 + (uint64_t)slot, 0 }, .tree = &rig->trees[slot] };
}

int32_t draft_rig_accepted(const Tree *tree, const int32_t *truth, int32_t n)
{
    int32_t accepted = 0;
    for (int32_t node = 0; accepted < n && (node = tree_child(tree, node, truth[accepted])) >= 0;) accepted++;
    return accepted;
}
