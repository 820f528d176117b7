/* tandem plan: what the model with these flags would take, counted from headers; nothing is allocated. A device is opened to ask
 * what it can give, and closed again. */
#include "cli/command.h"

#include "engine/plan.h"

#include <stdio.h>

Status command_plan(const Options *o, Error *err)
{
    char dir[4096];
    StackOptions so;
    Plan plan;
    Status s = command_stack_options(o, &so, err);
    if (!s) s = model_find(o->model, dir, sizeof dir, err);
    if (!s) s = command_ask_device(&so, err);
    if (!s) s = command_explain_plan(&so, stack_plan(&so, dir, &plan, err), err);
    if (s) return s;
    Buf text;
    buf_init(&text, 1 << 16);
    (o->json ? plan_json : plan_text)(&plan, &text);
    if (text.failed) return error_set(err, ERR_NOMEM, "no memory to write the plan");
    fwrite(text.data, 1, text.len, stdout);
    buf_free(&text);
    return OK;
}
