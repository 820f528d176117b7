/* Statements: writes text, sets names, runs loops and macros.
 *
 * Where a name is set decides who sees it, as in Jinja2: a loop (each round anew), a macro and a set block are scopes
 * of their own; an if is not. A macro sees its arguments and the globals, never the loop it is called from. */
#include "text/jinja_eval_impl.h"

typedef enum Flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } Flow;

static Flow exec_list(Interp *in, const Node *n);

/* ---- scopes ---- */

typedef struct Scope {
    int n_locals, scope_base, frame_base;
} Scope;

static Scope scope_begin(Interp *in)
{
    Scope before = { in->n_locals, in->scope_base, in->frame_base };
    in->scope_base = in->n_locals;
    in->n_scopes++;
    return before;
}

static void scope_end(Interp *in, Scope before)
{
    in->n_locals = before.n_locals;
    in->scope_base = before.scope_base;
    in->frame_base = before.frame_base;
    in->n_scopes--;
}

static void set_name(Interp *in, int symbol, Value v)
{
    if (in->n_scopes > 0) local_set(in, symbol, v);
    else in->globals[symbol] = v;
}

static void set_attribute(Interp *in, const Node *target, Value v)
{
    Value object = eval(in, target->attribute.object);
    if (in->failed) return;
    if (object.type != V_NAMESPACE) {
        interp_fail(in, "cannot assign attribute on non-namespace object");
        return;
    }
    Namespace *ns = object.ns;
    int i = 0;
    while (i < ns->n && !str_equal(ns->names[i], target->attribute.name)) i++;
    if (i == ns->n && ns->n == ns->capacity) {
        int capacity = ns->capacity ? 2 * ns->capacity : 8;
        Str *names = interp_array(in, Str, capacity);
        Value *values = interp_array(in, Value, capacity);
        if (in->failed) return;
        if (ns->n) memcpy(names, ns->names, (size_t)ns->n * sizeof *names);
        if (ns->n) memcpy(values, ns->values, (size_t)ns->n * sizeof *values);
        *ns = (Namespace){ names, values, ns->n, capacity };
    }
    ns->names[i] = target->attribute.name;
    ns->values[i] = v;
    if (i == ns->n) ns->n++;
}

static void assign(Interp *in, const Node *target, Value v)
{
    if (in->failed) return;
    if (target->kind == N_NAME) {
        set_name(in, target->symbol, v);
        return;
    }
    if (target->kind == N_ATTRIBUTE) {
        set_attribute(in, target, v);
        return;
    }
    const List *items = value_items(in, v);
    if (!in->failed && items->n != target->list.n) {
        interp_fail(in, items->n < target->list.n ? "not enough values to unpack (expected %d, got %lld)"
                                                  : "too many values to unpack (expected %d, got %lld)",
                    target->list.n, (long long)items->n);
    }
    for (int i = 0; i < target->list.n && !in->failed; i++) assign(in, target->list.items[i], items->items[i]);
}

/* ---- capturing ---- */

/* Runs the statements with their output going to a string. */
static Flow capture(Interp *in, const Node *body, Value *out)
{
    Buf text, *outer = in->out;
    text_begin(&text);
    in->out = &text;
    Flow flow = exec_list(in, body);
    in->out = outer;
    *out = text_end(in, &text);
    return flow;
}

/* A break or continue inside leaves the block, and its text, behind. */
static Flow exec_set_block(Interp *in, const Node *n)
{
    Value text;
    Scope before = scope_begin(in);
    Flow flow = capture(in, n->set.value, &text);
    scope_end(in, before);
    if (flow == FLOW_NEXT) assign(in, n->set.target, text);
    return flow;
}

/* ---- macros ---- */

/* Index into a's values of the named argument, -1 = not given. */
static int named_argument(const CallArguments *a, Str name)
{
    for (int i = 0; i < a->n_named; i++) {
        if (str_equal(a->names[i], name)) return a->n + i;
    }
    return -1;
}

static void check_macro_arguments(Interp *in, const Node *m, const CallArguments *a)
{
    Str macro = in->t->names[m->macro.symbol];
    if (a->n > m->macro.n_parameters) {
        interp_fail(in, "macro '%.*s' takes not more than %d argument(s)", (int)macro.len, macro.data,
                    m->macro.n_parameters);
    }
    for (int i = 0; i < a->n_named && !in->failed; i++) {
        int at = 0;
        while (at < m->macro.n_parameters && !str_equal(in->t->names[m->macro.parameters[at].symbol], a->names[i]))
            at++;
        if (at >= a->n && at < m->macro.n_parameters) continue;
        interp_fail(in, "macro '%.*s' cannot take the keyword argument '%.*s'", (int)macro.len, macro.data,
                    (int)a->names[i].len, a->names[i].data);
    }
}

static void bind_parameter(Interp *in, const Parameter *p, int i, const CallArguments *a)
{
    Str name = in->t->names[p->symbol];
    int named = named_argument(a, name);
    Value v;
    if (i < a->n) v = a->values[i];
    else if (named >= 0) v = a->values[named];
    else if (p->default_value) v = eval(in, p->default_value);
    else v = value_undefined(UNDEFINED_NAME, V_NONE, name);
    local_set(in, p->symbol, v);
}

Value call_macro(Interp *in, const Node *macro, const CallArguments *a)
{
    check_macro_arguments(in, macro, a);
    if (in->failed || !interp_enter(in)) return value_none();
    Scope before = scope_begin(in);
    in->frame_base = in->n_locals;
    for (int i = 0; i < macro->macro.n_parameters; i++) bind_parameter(in, &macro->macro.parameters[i], i, a);
    Value text;
    capture(in, macro->macro.body, &text);
    scope_end(in, before);
    interp_leave(in);
    return text;
}

/* ---- loops ---- */

/* The items for which `for ... if` holds. */
static const List *filter_items(Interp *in, const Node *n, const List *items)
{
    ListBuilder kept = { 0 };
    for (int64_t i = 0; i < items->n && !in->failed; i++) {
        Scope before = scope_begin(in);
        assign(in, n->loop.target, items->items[i]);
        if (value_truth(eval(in, n->loop.filter))) list_push(in, &kept, items->items[i]);
        scope_end(in, before);
    }
    return value_list(in, V_LIST, kept.items, kept.n).list;
}

/* True when some round got to its end: Jinja2 runs the else of a loop whose rounds all ended in break or continue,
 * too. */
static bool exec_rounds(Interp *in, const Node *n, const List *items)
{
    bool any_complete = false;
    Loop *loop = interp_array(in, Loop, 1);
    if (!loop) return true;
    *loop = (Loop){ .items = items };
    for (; loop->at < items->n && !in->failed; loop->at++) {
        Scope before = scope_begin(in);
        local_set(in, SYMBOL_LOOP, (Value){ .type = V_LOOP, .loop = loop });
        assign(in, n->loop.target, items->items[loop->at]);
        Flow flow = exec_list(in, n->loop.body);
        scope_end(in, before);
        if (flow == FLOW_BREAK) break;
        if (flow == FLOW_NEXT) any_complete = true;
    }
    return any_complete;
}

static Flow exec_for(Interp *in, const Node *n)
{
    const List *items = value_items(in, eval(in, n->loop.iterable));
    if (n->loop.filter && !in->failed) items = filter_items(in, n, items);
    if (in->failed || exec_rounds(in, n, items)) return FLOW_NEXT;
    Scope before = scope_begin(in);
    Flow flow = exec_list(in, n->loop.otherwise);
    scope_end(in, before);
    return flow;
}

/* ---- all ---- */

static void write_value(Interp *in, Value v)
{
    if (in->failed) return;
    value_write(in, in->out, v);
    text_check(in, in->out);
}

static Flow exec_if(Interp *in, const Node *n)
{
    for (int i = 0; i < n->branches.n && !in->failed; i++) {
        if (value_truth(eval(in, n->branches.tests[i]))) return exec_list(in, n->branches.bodies[i]);
    }
    return exec_list(in, n->branches.bodies[n->branches.n]);
}

static Flow exec_generation(Interp *in, const Node *n)
{
    Scope before = scope_begin(in);
    Flow flow = exec_list(in, n->operand);
    scope_end(in, before);
    return flow;
}

static Flow exec_node(Interp *in, const Node *n)
{
    switch (n->kind) {
    case N_TEXT: write_value(in, value_str(n->text)); return FLOW_NEXT;
    case N_OUTPUT: write_value(in, eval(in, n->operand)); return FLOW_NEXT;
    case N_IF: return exec_if(in, n);
    case N_FOR: return exec_for(in, n);
    case N_SET: assign(in, n->set.target, eval(in, n->set.value)); return FLOW_NEXT;
    case N_SET_BLOCK: return exec_set_block(in, n);
    case N_MACRO: set_name(in, n->macro.symbol, (Value){ .type = V_MACRO, .macro = n }); return FLOW_NEXT;
    case N_BREAK: return FLOW_BREAK;
    case N_CONTINUE: return FLOW_CONTINUE;
    case N_GENERATION: return exec_generation(in, n);
    default: break;
    }
    CHECK(!"a statement");
    return FLOW_NEXT;
}

static Flow exec_list(Interp *in, const Node *n)
{
    Flow flow = FLOW_NEXT;
    if (!n || !interp_enter(in)) return flow;
    for (; n && flow == FLOW_NEXT && interp_charge(in, 1); n = n->next) {
        in->line = n->line;
        flow = exec_node(in, n);
    }
    interp_leave(in);
    return flow;
}

void exec_template(Interp *in)
{
    exec_list(in, in->t->body);
}
