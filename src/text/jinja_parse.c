/* Tokens to a tree, by recursive descent in the grammar of Jinja2 3.1.
 *
 * Precedence from loose to tight:
 *     a if b else c    or    and    not    == != < <= > >= in, not in    + -    ~    * / // %    **    unary - +
 *     and tightest the endings: .name [index] (call) |filter is test
 * Statements that published templates do not use (extends, include, call ...) are refused by name.
 *
 * The first failure makes `failed` true and every later step return quickly; nodes made after it are never run. */
#include "text/jinja_ast_impl.h"

#include <stdio.h>

typedef struct Parser {
    Template *t;
    Token    *tokens;
    int       at;
    int       nesting;
    int       loops; /* for blocks around this place, within the innermost macro */
    int       name_capacity;
    bool      failed;
    Status    status; /* why */
    Error    *err;
    Node      lost; /* what new_node() gives after a failure, so that callers need not look */
} Parser;

static Node *parse_expression(Parser *p);
static Node *parse_or(Parser *p);
static Node *parse_primary(Parser *p);
static Node *parse_unary(Parser *p, bool with_filters);
static Node *parse_statements(Parser *p, const char *const *ends);

static void fail(Parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(Parser *p, const char *format, ...)
{
    char what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    Status why = error_set(p->err, ERR_INPUT, "the chat template cannot be parsed: %s in line %d", what, p->tokens[p->at].line);
    if (!p->failed) p->status = why;
    p->failed = true;
}

/* ---- memory ---- */

static void *take(Parser *p, size_t n, size_t item_bytes)
{
    void *memory = arena_alloc_array(&p->t->arena, n ? n : 1, item_bytes);
    if (memory) return memory;
    Status why = error_set(p->err, arena_refusal(&p->t->arena, n * item_bytes), "no memory to parse the chat template");
    if (!p->failed) p->status = why;
    p->failed = true;
    return NULL;
}

static Node *new_node(Parser *p, NodeKind kind)
{
    Node *n = take(p, 1, sizeof *n);
    if (!n) return &p->lost;
    n->kind = kind;
    n->line = p->tokens[p->at].line;
    return n;
}

/* A list that grows while its end is unknown. */
typedef struct NodeList {
    Node **items;
    int    n, capacity;
} NodeList;

static void list_add(Parser *p, NodeList *list, Node *node)
{
    if (list->n == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 4;
        Node **more = take(p, (size_t)capacity, sizeof *more);
        if (!more) return;
        if (list->n) memcpy(more, list->items, (size_t)list->n * sizeof *more);
        list->items = more;
        list->capacity = capacity;
    }
    list->items[list->n++] = node;
}

static Node *list_node(Parser *p, NodeKind kind, const NodeList *list)
{
    Node *n = new_node(p, kind);
    n->list.items = list->items;
    n->list.n = list->n;
    return n;
}

/* ---- tokens ---- */

static const Token *current(const Parser *p) { return &p->tokens[p->at]; }
static void advance(Parser *p) { if (current(p)->type != T_END) p->at++; }
static bool is_op(const Parser *p, int op) { return current(p)->type == T_OP && current(p)->op == op; }
static bool is_word_at(const Parser *p, int at, const char *word)
{
    return p->tokens[at].type == T_NAME && str_equal(p->tokens[at].text, str_of(word));
}
static bool is_word(const Parser *p, const char *word) { return is_word_at(p, p->at, word); }

static bool skip_op(Parser *p, int op)
{
    if (!is_op(p, op)) return false;
    advance(p);
    return true;
}

static bool skip_word(Parser *p, const char *word)
{
    if (!is_word(p, word)) return false;
    advance(p);
    return true;
}

static void describe(const Token *t, char out[64])
{
    if (t->type == T_NAME) snprintf(out, 64, "\"%.*s\"", (int)(t->text.len < 40 ? t->text.len : 40), t->text.data);
    else if (t->type == T_OP) snprintf(out, 64, "\"%c%c\"", t->op & 0xFF, t->op >> 8 ? t->op >> 8 : '\0');
    else if (t->type == T_STRING) snprintf(out, 64, "a string");
    else if (t->type == T_INT || t->type == T_FLOAT) snprintf(out, 64, "a number");
    else if (t->type == T_END) snprintf(out, 64, "the end of the template");
    else snprintf(out, 64, "the end of the tag");
    if (t->type == T_OP && !(t->op >> 8)) snprintf(out, 64, "\"%c\"", t->op);
}

static void expected(Parser *p, const char *what)
{
    char got[64];
    describe(current(p), got);
    fail(p, "expected %s, got %s", what, got);
}

static void expect_op(Parser *p, int op, const char *what)
{
    if (!skip_op(p, op)) expected(p, what);
}

static void expect_type(Parser *p, TokenType type, const char *what)
{
    if (current(p)->type == type) advance(p);
    else expected(p, what);
}

static Str expect_name(Parser *p)
{
    Str name = current(p)->text;
    if (current(p)->type != T_NAME) {
        expected(p, "a name");
        return (Str){ "", 0 };
    }
    advance(p);
    return name;
}

/* Names become small numbers, so that a look-up at run time compares those. */
static int symbol_of(Parser *p, Str name)
{
    Template *t = p->t;
    int known = template_symbol(t, name);
    if (known >= 0) return known;
    if (t->n_names == MAX_TEMPLATE_NAMES) {
        fail(p, "it uses more than %d names", MAX_TEMPLATE_NAMES);
        return 0;
    }
    if (t->n_names == p->name_capacity) {
        p->name_capacity = p->name_capacity ? 2 * p->name_capacity : 32;
        Str *more = take(p, (size_t)p->name_capacity, sizeof *more);
        if (!more) return 0;
        if (t->n_names) memcpy(more, t->names, (size_t)t->n_names * sizeof *more);
        t->names = more;
    }
    t->names[t->n_names] = name;
    return t->n_names++;
}

static bool enter(Parser *p)
{
    if (p->nesting == MAX_TEMPLATE_NESTING) fail(p, "it nests deeper than %d levels", MAX_TEMPLATE_NESTING);
    if (p->failed) return false;
    p->nesting++;
    return true;
}

static void leave(Parser *p)
{
    p->nesting--;
}

/* ---- literals and names ---- */

static Node *constant(Parser *p, Value value)
{
    Node *n = new_node(p, N_CONST);
    n->constant = value;
    return n;
}

static bool is_constant_name(Str name, Value *value)
{
    static const struct {
        Str  name;
        int  type;
        bool b;
    } known[] = { { { "true", 4 }, V_BOOL, true },   { { "True", 4 }, V_BOOL, true }, { { "false", 5 }, V_BOOL, false },
                  { { "False", 5 }, V_BOOL, false }, { { "none", 4 }, V_NONE, 0 },    { { "None", 4 }, V_NONE, 0 } };
    for (int i = 0; i < COUNT(known); i++) {
        if (!str_equal(known[i].name, name)) continue;
        *value = known[i].type == V_NONE ? value_none() : value_bool(known[i].b);
        return true;
    }
    return false;
}

static Node *parse_name(Parser *p)
{
    Value value;
    Str name = current(p)->text;
    if (is_constant_name(name, &value)) {
        Node *n = constant(p, value);
        advance(p);
        return n;
    }
    Node *n = new_node(p, N_NAME);
    n->symbol = symbol_of(p, name);
    advance(p);
    return n;
}

/* 'a' 'b' is 'ab'. */
static Node *parse_string(Parser *p)
{
    Node *n = constant(p, value_str(current(p)->text));
    advance(p);
    while (current(p)->type == T_STRING && !p->failed) {
        Str a = n->constant.s, b = current(p)->text;
        char *joined = take(p, a.len + b.len, 1);
        if (!joined) break;
        memcpy(joined, a.data, a.len);
        memcpy(joined + a.len, b.data, b.len);
        n->constant.s = (Str){ joined, a.len + b.len };
        advance(p);
    }
    return n;
}

static Node *parse_number(Parser *p)
{
    const Token *t = current(p);
    Node *n = constant(p, t->type == T_INT ? value_int(t->i) : value_float(t->f));
    advance(p);
    return n;
}

static Node *parse_list(Parser *p)
{
    NodeList list = { 0 };
    advance(p);
    while (!p->failed && !is_op(p, ']')) {
        if (list.n) expect_op(p, ',', "\",\" or \"]\"");
        if (is_op(p, ']')) break;
        list_add(p, &list, parse_expression(p));
    }
    expect_op(p, ']', "\"]\"");
    return list_node(p, N_LIST, &list);
}

static Node *parse_dict(Parser *p)
{
    NodeList list = { 0 };
    advance(p);
    while (!p->failed && !is_op(p, '}')) {
        if (list.n) expect_op(p, ',', "\",\" or \"}\"");
        if (is_op(p, '}')) break;
        list_add(p, &list, parse_expression(p));
        expect_op(p, ':', "\":\"");
        list_add(p, &list, parse_expression(p));
    }
    expect_op(p, '}', "\"}\"");
    return list_node(p, N_DICT, &list);
}

static bool at_tuple_end(const Parser *p)
{
    TokenType type = current(p)->type;
    return type == T_OUTPUT_END || type == T_BLOCK_END || is_op(p, ')') || p->failed;
}

/* "a" alone or "a, b" as a tuple. The end may come directly only inside parentheses, where () is the empty tuple. */
static Node *parse_tuple_of(Parser *p, Node *(*parse_item)(Parser *), bool in_parentheses)
{
    NodeList list = { 0 };
    bool comma = false;
    while (!at_tuple_end(p)) {
        list_add(p, &list, parse_item(p));
        if (!is_op(p, ',')) break;
        comma = true;
        advance(p);
    }
    if (!comma && list.n == 1) return list.items[0];
    if (list.n == 0 && !in_parentheses) expected(p, "an expression");
    return list_node(p, N_TUPLE, &list);
}

static Node *parse_tuple(Parser *p) { return parse_tuple_of(p, parse_expression, false); }

static Node *parse_primary(Parser *p)
{
    switch (current(p)->type) {
    case T_NAME: return parse_name(p);
    case T_STRING: return parse_string(p);
    case T_INT:
    case T_FLOAT: return parse_number(p);
    default: break;
    }
    if (is_op(p, '[')) return parse_list(p);
    if (is_op(p, '{')) return parse_dict(p);
    if (skip_op(p, '(')) {
        Node *n = parse_tuple_of(p, parse_expression, true);
        expect_op(p, ')', "\")\"");
        return n;
    }
    expected(p, "an expression");
    return new_node(p, N_CONST);
}

/* ---- endings: . [] () | is ---- */

static void parse_arguments(Parser *p, Arguments *out)
{
    NodeList by_position = { 0 }, named = { 0 };
    Str names[16] = { { 0 } };
    advance(p);
    while (!p->failed && !is_op(p, ')')) {
        if (by_position.n + named.n) expect_op(p, ',', "\",\" or \")\"");
        if (is_op(p, ')')) break;
        if (is_op(p, '*') || is_op(p, OP('*', '*'))) fail(p, "* and ** in a call are not supported");
        if (current(p)->type == T_NAME && p->tokens[p->at + 1].type == T_OP && p->tokens[p->at + 1].op == '=') {
            if (named.n == COUNT(names)) fail(p, "a call has more than %d named arguments", COUNT(names));
            else names[named.n] = current(p)->text;
            p->at += 2;
            list_add(p, &named, parse_expression(p));
        } else {
            if (named.n) fail(p, "an argument by position follows a named one");
            list_add(p, &by_position, parse_expression(p));
        }
    }
    expect_op(p, ')', "\")\"");
    *out = (Arguments){ .n = by_position.n, .n_named = named.n };
    out->values = take(p, (size_t)by_position.n + (size_t)named.n, sizeof *out->values);
    out->names = take(p, (size_t)named.n, sizeof *out->names);
    if (p->failed) return;
    if (by_position.n) memcpy(out->values, by_position.items, (size_t)by_position.n * sizeof *out->values);
    if (named.n) memcpy(out->values + by_position.n, named.items, (size_t)named.n * sizeof *out->values);
    memcpy(out->names, names, (size_t)named.n * sizeof *out->names);
}

static Node *parse_call(Parser *p, Node *callee)
{
    Node *n = new_node(p, N_CALL);
    n->call.callee = callee;
    parse_arguments(p, &n->call.arguments);
    return n;
}

/* Behind a dot: a name, or a number as in list.0 */
static Node *parse_attribute(Parser *p, Node *object)
{
    advance(p);
    if (current(p)->type == T_INT) {
        Node *n = new_node(p, N_ITEM);
        n->item.object = object;
        n->item.index = parse_number(p);
        return n;
    }
    Node *n = new_node(p, N_ATTRIBUTE);
    n->attribute.object = object;
    n->attribute.name = expect_name(p);
    return n;
}

static bool at_slice_end(const Parser *p) { return is_op(p, ':') || is_op(p, ']') || p->failed; }

static Node *parse_slice(Parser *p, Node *object, Node *start)
{
    Node *n = new_node(p, N_SLICE);
    n->slice.object = object;
    n->slice.start = start;
    advance(p); /* the first colon */
    if (!at_slice_end(p)) n->slice.stop = parse_expression(p);
    if (skip_op(p, ':') && !at_slice_end(p)) n->slice.step = parse_expression(p);
    expect_op(p, ']', "\"]\"");
    return n;
}

static Node *parse_subscript(Parser *p, Node *object)
{
    advance(p);
    Node *start = is_op(p, ':') ? NULL : parse_expression(p);
    if (is_op(p, ':')) return parse_slice(p, object, start);
    Node *n = new_node(p, N_ITEM);
    n->item.object = object;
    n->item.index = start;
    expect_op(p, ']', "\"]\"");
    return n;
}

static Node *parse_postfix(Parser *p, Node *n)
{
    while (!p->failed) {
        if (is_op(p, '.')) n = parse_attribute(p, n);
        else if (is_op(p, '[')) n = parse_subscript(p, n);
        else if (is_op(p, '(')) n = parse_call(p, n);
        else break;
    }
    return n;
}

/* The name of a filter or test. One with dots is well formed, but none is known by such a name. */
static Str expect_builtin_name(Parser *p)
{
    Str name = expect_name(p);
    while (!p->failed && skip_op(p, '.')) {
        Str last = expect_name(p);
        if (!p->failed) name.len = (size_t)(last.data + last.len - name.data);
    }
    return name;
}

static Node *parse_filter(Parser *p, Node *input)
{
    advance(p);
    Node *n = new_node(p, N_FILTER);
    n->apply.input = input;
    n->apply.name = expect_builtin_name(p);
    n->apply.builtin = filter_find(n->apply.name);
    if (is_op(p, '(')) parse_arguments(p, &n->apply.arguments);
    return n;
}

/* "x is divisibleby 3": one argument may stand without parentheses. */
static bool bare_argument_follows(const Parser *p)
{
    if (current(p)->type == T_NAME) {
        static const char *const after_a_test[] = { "else", "or", "and", "if", "in", "not", "is" };
        for (int i = 0; i < COUNT(after_a_test); i++) {
            if (is_word(p, after_a_test[i])) return false;
        }
        return true;
    }
    TokenType type = current(p)->type;
    return type == T_STRING || type == T_INT || type == T_FLOAT || is_op(p, '[') || is_op(p, '{');
}

static Node *parse_test(Parser *p, Node *input)
{
    advance(p);
    bool negated = skip_word(p, "not");
    Node *n = new_node(p, N_TEST);
    n->apply.input = input;
    n->apply.name = expect_builtin_name(p);
    n->apply.builtin = test_find(n->apply.name);
    if (is_op(p, '(')) {
        parse_arguments(p, &n->apply.arguments);
    } else if (bare_argument_follows(p)) {
        n->apply.arguments.values = take(p, 1, sizeof(Node *));
        Node *argument = parse_postfix(p, parse_primary(p));
        if (p->failed) return n;
        n->apply.arguments.values[0] = argument;
        n->apply.arguments.n = 1;
    }
    if (!negated) return n;
    Node *not_it = new_node(p, N_NOT);
    not_it->operand = n;
    return not_it;
}

static Node *parse_filters(Parser *p, Node *n)
{
    while (!p->failed) {
        if (is_op(p, '|')) n = parse_filter(p, n);
        else if (is_word(p, "is")) n = parse_test(p, n);
        else if (is_op(p, '(')) n = parse_call(p, n);
        else break;
    }
    return n;
}

/* ---- operators ---- */

static Node *parse_sign(Parser *p)
{
    Node *n = new_node(p, is_op(p, '-') ? N_NEGATE : N_PLUS);
    advance(p);
    n->operand = parse_unary(p, false);
    return n;
}

static Node *parse_unary(Parser *p, bool with_filters)
{
    if (!enter(p)) return new_node(p, N_CONST);
    Node *n = is_op(p, '-') || is_op(p, '+') ? parse_sign(p) : parse_primary(p);
    n = parse_postfix(p, n);
    if (with_filters) n = parse_filters(p, n);
    leave(p);
    return n;
}

static Node *parse_operand(Parser *p) { return parse_unary(p, true); }

/* Reads "operand (op operand)*" of one precedence. read_op gives the operator and moves behind it, 0 = another follows. */
static Node *parse_chain(Parser *p, NodeKind kind, int (*read_op)(Parser *), Node *(*parse_tighter)(Parser *))
{
    Node *first = parse_tighter(p);
    Operand *rest = NULL;
    int n = 0, capacity = 0, op;
    while (!p->failed && (op = read_op(p)) != 0) {
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 4;
            Operand *more = take(p, (size_t)capacity, sizeof *more);
            if (!more) break;
            if (n) memcpy(more, rest, (size_t)n * sizeof *more);
            rest = more;
        }
        rest[n++] = (Operand){ op, parse_tighter(p) };
    }
    if (n == 0) return first;
    Node *node = new_node(p, kind);
    node->chain.first = first;
    node->chain.rest = rest;
    node->chain.n = n;
    return node;
}

static int read_one_of(Parser *p, const int *ops, int n)
{
    for (int i = 0; i < n; i++) {
        if (skip_op(p, ops[i])) return ops[i];
    }
    return 0;
}

static int read_power(Parser *p)
{
    static const int ops[] = { OP('*', '*') };
    return read_one_of(p, ops, COUNT(ops));
}

static int read_product(Parser *p)
{
    static const int ops[] = { '*', '/', OP('/', '/'), '%' };
    return read_one_of(p, ops, COUNT(ops));
}

static int read_sum(Parser *p)
{
    static const int ops[] = { '+', '-' };
    return read_one_of(p, ops, COUNT(ops));
}

static int read_comparison(Parser *p)
{
    static const int ops[] = { OP('=', '='), OP('!', '='), '<', OP('<', '='), '>', OP('>', '=') };
    if (skip_word(p, "in")) return OP_IN;
    if (is_word(p, "not") && is_word_at(p, p->at + 1, "in")) {
        p->at += 2;
        return OP_NOT_IN;
    }
    return read_one_of(p, ops, COUNT(ops));
}

static Node *parse_power(Parser *p) { return parse_chain(p, N_ARITHMETIC, read_power, parse_operand); }
static Node *parse_product(Parser *p) { return parse_chain(p, N_ARITHMETIC, read_product, parse_power); }

/* "item (separator item)*" as one node. */
static Node *parse_joined(Parser *p, NodeKind kind, bool (*skip)(Parser *), Node *(*parse_item)(Parser *))
{
    NodeList list = { 0 };
    do list_add(p, &list, parse_item(p));
    while (!p->failed && skip(p));
    return list.n == 1 ? list.items[0] : list_node(p, kind, &list);
}

static bool skip_tilde(Parser *p) { return skip_op(p, '~'); }
static bool skip_and(Parser *p) { return skip_word(p, "and"); }
static bool skip_or(Parser *p) { return skip_word(p, "or"); }

static Node *parse_concat(Parser *p) { return parse_joined(p, N_CONCAT, skip_tilde, parse_product); }
static Node *parse_sum(Parser *p) { return parse_chain(p, N_ARITHMETIC, read_sum, parse_concat); }
static Node *parse_comparison(Parser *p) { return parse_chain(p, N_COMPARE, read_comparison, parse_sum); }

static Node *parse_not(Parser *p)
{
    if (!is_word(p, "not")) return parse_comparison(p);
    if (!enter(p)) return new_node(p, N_CONST);
    Node *n = new_node(p, N_NOT);
    advance(p);
    n->operand = parse_not(p);
    leave(p);
    return n;
}

static Node *parse_and(Parser *p) { return parse_joined(p, N_AND, skip_and, parse_not); }
static Node *parse_or(Parser *p) { return parse_joined(p, N_OR, skip_or, parse_and); }

static Node *parse_expression(Parser *p)
{
    if (!enter(p)) return new_node(p, N_CONST);
    Node *n = parse_or(p);
    while (!p->failed && is_word(p, "if")) {
        Node *conditional = new_node(p, N_CONDITIONAL);
        advance(p);
        conditional->conditional.then = n;
        conditional->conditional.test = parse_or(p);
        if (skip_word(p, "else")) conditional->conditional.otherwise = parse_expression(p);
        n = conditional;
    }
    leave(p);
    return n;
}

/* ---- statements ---- */

/* A name, or names in a tuple. with_attribute: also namespace.name, as set has it. */
static Node *parse_target_item(Parser *p, bool with_attribute)
{
    Value value;
    if (!enter(p)) return new_node(p, N_CONST);
    Node *n;
    if (skip_op(p, '(')) {
        NodeList list = { 0 };
        bool comma = false;
        while (!p->failed && !is_op(p, ')')) {
            list_add(p, &list, parse_target_item(p, with_attribute));
            if (!skip_op(p, ',')) break;
            comma = true;
        }
        expect_op(p, ')', "\")\"");
        n = list.n == 1 && !comma ? list.items[0] : list_node(p, N_TUPLE, &list);
    } else {
        if (current(p)->type == T_NAME && is_constant_name(current(p)->text, &value)) fail(p, "a constant cannot be assigned");
        else if (current(p)->type != T_NAME) expected(p, "a name");
        n = p->failed ? new_node(p, N_CONST) : parse_name(p);
        if (with_attribute && is_op(p, '.')) {
            n = parse_attribute(p, n);
            if (!p->failed && n->kind != N_ATTRIBUTE) fail(p, "only a namespace's attribute can be assigned");
        }
    }
    leave(p);
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
        list_add(p, &list, parse_item(p));
    } while (!p->failed && skip_op(p, ',') && (comma = true));
    return list.n == 1 && !comma ? list.items[0] : list_node(p, N_TUPLE, &list);
}

static void expect_block_end(Parser *p) { expect_type(p, T_BLOCK_END, "\"%}\""); }

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
    Node *n = new_node(p, N_IF);
    NodeList tests = { 0 }, bodies = { 0 };
    do {
        list_add(p, &tests, parse_tuple_of(p, parse_or, false));
        begin_body(p);
        list_add(p, &bodies, parse_statements(p, ends));
    } while (!p->failed && skip_word(p, "elif"));
    Node *otherwise = NULL;
    if (skip_word(p, "else")) otherwise = parse_body(p, "endif");
    else advance(p);
    list_add(p, &bodies, otherwise);
    n->branches.tests = tests.items;
    n->branches.bodies = bodies.items;
    n->branches.n = tests.n;
    return n;
}

static Node *parse_for(Parser *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    Node *n = new_node(p, N_FOR);
    n->loop.target = parse_target(p, parse_loop_target_item);
    if (!skip_word(p, "in")) expected(p, "\"in\"");
    n->loop.iterable = parse_tuple_of(p, parse_or, false);
    if (skip_word(p, "if")) n->loop.filter = parse_expression(p);
    if (is_word(p, "recursive")) fail(p, "recursive loops are not supported");
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
    Node *n = new_node(p, N_SET);
    n->set.target = parse_target(p, parse_set_target_item);
    if (skip_op(p, '=')) {
        n->set.value = parse_tuple(p);
        return n;
    }
    if (is_op(p, '|')) fail(p, "a set block with a filter is not supported");
    n->kind = N_SET_BLOCK;
    n->set.value = parse_body(p, "endset");
    return n;
}

static Node *parse_macro(Parser *p)
{
    Node *n = new_node(p, N_MACRO);
    Parameter parameters[32];
    int count = 0, loops = p->loops;
    n->macro.symbol = symbol_of(p, expect_name(p));
    expect_op(p, '(', "\"(\"");
    while (!p->failed && !is_op(p, ')')) {
        if (count) expect_op(p, ',', "\",\" or \")\"");
        if (is_op(p, ')')) break;
        if (count == COUNT(parameters)) {
            fail(p, "a macro has more than %d parameters", COUNT(parameters));
            break;
        }
        parameters[count].symbol = symbol_of(p, expect_name(p));
        parameters[count++].default_value = skip_op(p, '=') ? parse_expression(p) : NULL;
    }
    expect_op(p, ')', "\")\"");
    p->loops = 0; /* break inside a macro means the macro's own loops */
    n->macro.body = parse_body(p, "endmacro");
    p->loops = loops;
    n->macro.parameters = take(p, (size_t)count, sizeof *parameters);
    n->macro.n_parameters = count;
    if (!p->failed) memcpy(n->macro.parameters, parameters, (size_t)count * sizeof *parameters);
    return n;
}

static Node *parse_jump(Parser *p, NodeKind kind)
{
    if (p->loops == 0) fail(p, "break or continue outside a loop");
    return new_node(p, kind);
}

static Node *parse_generation(Parser *p)
{
    Node *n = new_node(p, N_GENERATION);
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
    describe(current(p), got);
    fail(p, "the statement %s is not supported or does not belong here", got);
    return new_node(p, N_TEXT);
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
    Node *n = new_node(p, N_TEXT);
    n->text = current(p)->text;
    advance(p);
    return n;
}

static Node *parse_output(Parser *p)
{
    Node *n = new_node(p, N_OUTPUT);
    advance(p);
    n->operand = parse_tuple(p);
    expect_type(p, T_OUTPUT_END, "\"}}\"");
    return n;
}

/* Statements up to a block that begins with one of `ends`, whose word is then current; NULL = up to the end. */
static Node *parse_statements(Parser *p, const char *const *ends)
{
    Node *first = NULL, **last = &first;
    if (!enter(p)) return NULL;
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
    if (ends && current(p)->type == T_END) fail(p, "%s is missing", last_of(ends));
    leave(p);
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
    CHECK(symbol_of(&p, STR("loop")) == SYMBOL_LOOP);
    t->body = parse_statements(&p, NULL);
    return p.status;
}
