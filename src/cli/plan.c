/* tandem plan: what the model with these flags would take, counted from headers; nothing is allocated. */
#include "cli/command.h"

#include "engine/plan.h"

#include <stdio.h>

static void print_json(const Plan *p)
{
    printf("{\"weights\": %zu, \"scratch\": %zu, \"pass\": %zu, \"token_cache\": %zu, \"states\": %zu, \"tables\": %zu, \"requests\": %zu, "
           "\"total\": %zu, \"budget\": %zu, \"available\": %zu, \"max_model_len\": %d, \"max_num_seqs\": %d, \"n_blocks\": %d, \"block_size\": %d}\n",
           p->weight_bytes, p->scratch_bytes, p->pass_bytes, p->token_cache_bytes, p->state_bytes, p->table_bytes, p->request_bytes,
           p->total_bytes, p->budget_bytes, p->available_bytes, p->engine.max_model_len, p->engine.max_num_seqs, p->engine.n_blocks,
           p->engine.block_size);
}

Status command_plan(const Options *o, Error *err)
{
    char dir[4096];
    StackOptions so;
    Plan plan;
    Status s = command_stack_options(o, &so, err);
    if (!s) s = model_find(o->model, dir, sizeof dir, err);
    if (!s) s = command_explain_plan(&so, stack_plan(&so, dir, &plan, err), err);
    if (s) return s;
    if (o->json) {
        print_json(&plan);
        return OK;
    }
    Buf text;
    buf_init(&text, 1 << 16);
    plan_text(&plan, &text);
    fwrite(text.data, 1, text.len, stdout);
    buf_free(&text);
    return OK;
}
