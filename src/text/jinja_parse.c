/* Tokens and statements to a tree, in the grammar of Jinja2 3.1. Statements that published templates do not use
 * (extends, include, call ...) are refused by name. */
#include "text/jinja_parse_impl.h"

#include <stdio.h>

static Node *parse_statements(Parser *p, const char *const *ends);

void parser_fail(Parser *p, const char *format, ...)
{
    char what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    Status why =
        error_set(p->err, ERR_INPUT, "the chat template cannot be parsed: %s in line %d", what, p->tokens[p->at].line);
    if (!p->failed) p->status = why;
    p->failed = true;
}

/* ---- memory ---- */

void *parser_take(Parser *p, size_t n, size_t item_bytes)
{
    void *memory = arena_alloc_array(&p->t->arena, n ? n : 1, item_bytes);
    if (memory) return memory;
    Status why = error_set(p->err, arena_refusal(&p->t->arena, n * item_bytes), "no memory to parse the chat template");
    if (!p->failed) p->status = why;
    p->failed = true;
    return NULL;
}

Node *parser_node(Parser *p, NodeKind kind)
{
    Node *n = parser_take(p, 1, sizeof *n);
    if (!n) return &p->lost;
    n->kind = kind;
    n->line = p->tokens[p->at].line;
    return n;
}

void node_list_add(Parser *p, NodeList *list, Node *node)
{
    if (list->n == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 4;
        Node **more = parser_take(p, (size_t)capacity, sizeof *more);
        if (!more) return;
        if (list->n) memcpy(more, list->items, (size_t)list->n * sizeof *more);
        list->items = more;
        list->capacity = capacity;
    }
    list->items[list->n++] = node;
}

Node *parser_list(Parser *p, NodeKind kind, const NodeList *list)
{
    Node *n = parser_node(p, kind);
    n->list.items = list->items;
    n->list.n = list->n;
    return n;
}

/* ---- tokens ---- */

void token_describe(const Token *t, char out[64])
{
    if (t->type == T_NAME) snprintf(out, 64, "\"%.*s\"", (int)(t->text.len < 40 ? t->text.len : 40), t->text.data);
    else if (t->type == T_OP) snprintf(out, 64, "\"%c%c\"", t->op & 0xFF, t->op >> 8 ? t->op >> 8 : '\0');
    else if (t->type == T_STRING) snprintf(out, 64, "a string");
    else if (t->type == T_INT || t->type == T_FLOAT) snprintf(out, 64, "a number");
    else if (t->type == T_END) snprintf(out, 64, "the end of the template");
    else snprintf(out, 64, "the end of the tag");
    if (t->type == T_OP && !(t->op >> 8)) snprintf(out, 64, "\"%c\"", t->op);
}

void parser_expected(Parser *p, const char *what)
{
    char got[64];
    token_describe(current(p), got);
    parser_fail(p, "expected %s, got %s", what, got);
}

void parser_expect_op(Parser *p, int op, const char *what)
{
    if (!skip_op(p, op)) parser_expected(p, what);
}

void parser_expect(Parser *p, TokenType type, const char *what)
{
    if (current(p)->type == type) advance(p);
    else parser_expected(p, what);
}

Str parser_expect_name(Parser *p)
{
    Str name = current(p)->text;
    if (current(p)->type != T_NAME) {
        parser_expected(p, "a name");
        return (Str){ "", 0 };
    }
    advance(p);
    return name;
}

/* Names become small numbers, so that a look-up at run time compares those. */
int parser_symbol(Parser *p, Str name)
{
    Template *t = p->t;
    int known = template_symbol(t, name);
    if (known >= 0) return known;
    if (t->n_names == MAX_TEMPLATE_NAMES) {
        parser_fail(p, "it uses more than %d names", MAX_TEMPLATE_NAMES);
        return 0;
    }
    if (t->n_names == p->name_capacity) {
        p->name_capacity = p->name_capacity ? 2 * p->name_capacity : 32;
        Str *more = parser_take(p, (size_t)p->name_capacity, sizeof *more);
        if (!more) return 0;
        if (t->n_names) memcpy(more, t->names, (size_t)t->n_names * sizeof *more);
        t->names = more;
    }
    t->names[t->n_names] = name;
    return t->n_names++;
}

bool parser_enter(Parser *p)
{
    if (p->nesting == MAX_TEMPLATE_NESTING) parser_fail(p, "it nests deeper than %d levels", MAX_TEMPLATE_NESTING);
    if (p->failed) return false;
    p->nesting++;
    return true;
}

void parser_leave(Parser *p)
{
    p->nesting--;
}

/* ---- statements ---- */

/* A name, or names in a tuple. with_attribute: also namespace.name, as set has it. */
static Node *parse_target_item(Parser *p, bool with_attribute)
{
    Value value;
    if (!parser_enter(p)) return parser_node(p, N_CONST);
    Node *n;
    if (skip_op(p, '(')) {
        NodeList list = { 0 };
        bool comma = false;
        while (!p->failed && !is_op(p, ')')) {
            node_list_add(p, &list, parse_target_item(p, with_attribute));
            if (!skip_op(p, ',')) break;
            comma = true;
        }
        parser_expect_op(p, ')', "\")\"");
        n = list.n == 1 && !comma ? list.items[0] : parser_list(p, N_TUPLE, &list);
    } else {
        if (current(p)->type == T_NAME && is_constant_name(current(p)->text, &value))
            parser_fail(p, "a constant cannot be assigned");
        else if (current(p)->type != T_NAME) parser_expected(p, "a name");
        n = p->failed ? parser_node(p, N_CONST) : parse_name(p);
        if (with_attribute && is_op(p, '.')) {
            n = parse_attribute(p, n);
            if (!p->failed && n->kind != N_ATTRIBUTE) parser_fail(p, "only a namespace's attribute can be assigned");
        }
    }
    parser_leave(p);
    return n;
}

static Node *parse_loop_target_item(Parser *p) { return parse_target_item(p, false); }
static Node *parse_set_target_item(Parser *p) { return parse_target_item(p, true); }

static Node *parse_target(Parser *p, Node *(*parse_item)(Parser *))
{
    NodeList list = { 0 };
    bool comma = false;
    do {
        if (list.n && (is_word(p, "in") || is_op(p, '='))) break;
        node_list_add(p, &list, parse_item(p));
    } while (!p->failed && skip_op(p, ',') && (comma = true));
    return list.n == 1 && !comma ? list.items[0] : parser_list(p, N_TUPLE, &list);
}

static void expect_block_end(Parser *p) { parser_expect(p, T_BLOCK_END, "\"%}\""); }

/* The end of a tag that opens a body; "{% if x: %}" is allowed, too. */
static void begin_body(Parser *p)
{
    skip_op(p, ':');
    expect_block_end(p);
}

/* The statements up to {% end %}, which goes too. */
static Node *parse_body(Parser *p, const char *end)
{
    const char *const ends[] = { end, NULL };
    begin_body(p);
    Node *body = parse_statements(p, ends);
    advance(p);
    return body;
}

static Node *parse_if(Parser *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    Node *n = parser_node(p, N_IF);
    NodeList tests = { 0 }, bodies = { 0 };
    do {
        node_list_add(p, &tests, parse_tuple_of(p, parse_or, false));
        begin_body(p);
        node_list_add(p, &bodies, parse_statements(p, ends));
    } while (!p->failed && skip_word(p, "elif"));
    Node *otherwise = NULL;
    if (skip_word(p, "else")) otherwise = parse_body(p, "endif");
    else advance(p);
    node_list_add(p, &bodies, otherwise);
    n->branches.tests = tests.items;
    n->branches.bodies = bodies.items;
    n->branches.n = tests.n;
    return n;
}

static Node *parse_for(Parser *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    Node *n = parser_node(p, N_FOR);
    n->loop.target = parse_target(p, parse_loop_target_item);
    if (!skip_word(p, "in")) parser_expected(p, "\"in\"");
    n->loop.iterable = parse_tuple_of(p, parse_or, false);
    if (skip_word(p, "if")) n->loop.filter = parse_expression(p);
    if (is_word(p, "recursive")) parser_fail(p, "recursive loops are not supported");
    begin_body(p);
    p->loops++;
    n->loop.body = parse_statements(p, ends);
    p->loops--;
    if (skip_word(p, "else")) n->loop.otherwise = parse_body(p, "endfor");
    else advance(p);
    return n;
}

static Node *parse_set(Parser *p)
{
    Node *n = parser_node(p, N_SET);
    n->set.target = parse_target(p, parse_set_target_item);
    if (skip_op(p, '=')) {
        n->set.value = parse_tuple(p);
        return n;
    }
    if (is_op(p, '|')) parser_fail(p, "a set block with a filter is not supported");
    n->kind = N_SET_BLOCK;
    n->set.value = parse_body(p, "endset");
    return n;
}

static Node *parse_macro(Parser *p)
{
    Node *n = parser_node(p, N_MACRO);
    Parameter parameters[32];
    int count = 0, loops = p->loops;
    n->macro.symbol = parser_symbol(p, parser_expect_name(p));
    parser_expect_op(p, '(', "\"(\"");
    while (!p->failed && !is_op(p, ')')) {
        if (count) parser_expect_op(p, ',', "\",\" or \")\"");
        if (is_op(p, ')')) break;
        if (count == COUNT(parameters)) {
            parser_fail(p, "a macro has more than %d parameters", COUNT(parameters));
            break;
        }
        parameters[count].symbol = parser_symbol(p, parser_expect_name(p));
        parameters[count++].default_value = skip_op(p, '=') ? parse_expression(p) : NULL;
    }
    parser_expect_op(p, ')', "\")\"");
    p->loops = 0; /* break inside a macro means the macro's own loops */
    n->macro.body = parse_body(p, "endmacro");
    p->loops = loops;
    n->macro.parameters = parser_take(p, (size_t)count, sizeof *parameters);
    n->macro.n_parameters = count;
    if (!p->failed) memcpy(n->macro.parameters, parameters, (size_t)count * sizeof *parameters);
    return n;
}

static Node *parse_jump(Parser *p, NodeKind kind)
{
    if (p->loops == 0) parser_fail(p, "break or continue outside a loop");
    return parser_node(p, kind);
}

static Node *parse_generation(Parser *p)
{
    Node *n = parser_node(p, N_GENERATION);
    n->operand = parse_body(p, "endgeneration");
    return n;
}

/* Behind "{%": a statement, up to but without its last "%}". */
static Node *parse_statement(Parser *p)
{
    if (skip_word(p, "if")) return parse_if(p);
    if (skip_word(p, "for")) return parse_for(p);
    if (skip_word(p, "set")) return parse_set(p);
    if (skip_word(p, "macro")) return parse_macro(p);
    if (skip_word(p, "break")) return parse_jump(p, N_BREAK);
    if (skip_word(p, "continue")) return parse_jump(p, N_CONTINUE);
    if (skip_word(p, "generation")) return parse_generation(p);
    char got[64];
    token_describe(current(p), got);
    parser_fail(p, "the statement %s is not supported or does not belong here", got);
    return parser_node(p, N_TEXT);
}

static bool at_one_of(const Parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++) {
        if (is_word(p, *ends)) return true;
    }
    return false;
}

static const char *last_of(const char *const *ends)
{
    while (ends[1]) ends++;
    return *ends;
}

static Node *parse_text(Parser *p)
{
    Node *n = parser_node(p, N_TEXT);
    n->text = current(p)->text;
    advance(p);
    return n;
}

static Node *parse_output(Parser *p)
{
    Node *n = parser_node(p, N_OUTPUT);
    advance(p);
    n->operand = parse_tuple(p);
    parser_expect(p, T_OUTPUT_END, "\"}}\"");
    return n;
}

/* Statements up to a block that begins with one of `ends`, whose word is then current; NULL = up to the end. */
static Node *parse_statements(Parser *p, const char *const *ends)
{
    Node *first = NULL, **last = &first;
    if (!parser_enter(p)) return NULL;
    while (!p->failed && current(p)->type != T_END) {
        Node *n;
        if (current(p)->type == T_TEXT) {
            n = parse_text(p);
        } else if (current(p)->type == T_OUTPUT_BEGIN) {
            n = parse_output(p);
        } else {
            advance(p); /* {% */
            if (at_one_of(p, ends)) break;
            n = parse_statement(p);
            expect_block_end(p);
        }
        if (p->failed) break;
        *last = n;
        last = &n->next;
    }
    if (ends && current(p)->type == T_END) parser_fail(p, "%s is missing", last_of(ends));
    parser_leave(p);
    return first;
}

int template_symbol(const Template *t, Str name)
{
    for (int i = 0; i < t->n_names; i++) {
        if (str_equal(t->names[i], name)) return i;
    }
    return -1;
}

Status template_parse(Template *t, const char *source, size_t n, Error *err)
{
    Token *tokens;
    int n_tokens;
    Status status = jinja_lex(&t->arena, &tokens, &n_tokens, source, n, err);
    if (status != OK) return status;
    Parser p = { .t = t, .tokens = tokens, .err = err };
    CHECK(parser_symbol(&p, STR("loop")) == SYMBOL_LOOP);
    t->body = parse_statements(&p, NULL);
    return p.status;
}
