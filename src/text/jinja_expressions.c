/* Expressions, by recursive descent. Precedence from loose to tight:
 *
 *     a if b else c    or    and    not    == != < <= > >= in, not in    + -    ~    * / // %    **    unary - +
 *     and tightest the endings: .name [index] (call) |filter is test */
#include "text/jinja_parse_impl.h"

static Node *parse_primary(Parser *p);
static Node *parse_unary(Parser *p, bool with_filters);

/* ---- literals and names ---- */

static Node *constant(Parser *p, Value value)
{
    Node *n = parser_node(p, N_CONST);
    n->constant = value;
    return n;
}

bool is_constant_name(Str name, Value *value)
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

Node *parse_name(Parser *p)
{
    Value value;
    Str name = current(p)->text;
    if (is_constant_name(name, &value)) {
        Node *n = constant(p, value);
        advance(p);
        return n;
    }
    Node *n = parser_node(p, N_NAME);
    n->symbol = parser_symbol(p, name);
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
        char *joined = parser_take(p, a.len + b.len, 1);
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
        if (list.n) parser_expect_op(p, ',', "\",\" or \"]\"");
        if (is_op(p, ']')) break;
        node_list_add(p, &list, parse_expression(p));
    }
    parser_expect_op(p, ']', "\"]\"");
    return parser_list(p, N_LIST, &list);
}

static Node *parse_dict(Parser *p)
{
    NodeList list = { 0 };
    advance(p);
    while (!p->failed && !is_op(p, '}')) {
        if (list.n) parser_expect_op(p, ',', "\",\" or \"}\"");
        if (is_op(p, '}')) break;
        node_list_add(p, &list, parse_expression(p));
        parser_expect_op(p, ':', "\":\"");
        node_list_add(p, &list, parse_expression(p));
    }
    parser_expect_op(p, '}', "\"}\"");
    return parser_list(p, N_DICT, &list);
}

static bool at_tuple_end(const Parser *p)
{
    TokenType type = current(p)->type;
    return type == T_OUTPUT_END || type == T_BLOCK_END || is_op(p, ')') || p->failed;
}

/* "a" alone or "a, b" as a tuple. The end may come directly only inside parentheses, where () is the empty tuple. */
Node *parse_tuple_of(Parser *p, Node *(*parse_item)(Parser *), bool in_parentheses)
{
    NodeList list = { 0 };
    bool comma = false;
    while (!at_tuple_end(p)) {
        node_list_add(p, &list, parse_item(p));
        if (!is_op(p, ',')) break;
        comma = true;
        advance(p);
    }
    if (!comma && list.n == 1) return list.items[0];
    if (list.n == 0 && !in_parentheses) parser_expected(p, "an expression");
    return parser_list(p, N_TUPLE, &list);
}

Node *parse_tuple(Parser *p) { return parse_tuple_of(p, parse_expression, false); }

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
        parser_expect_op(p, ')', "\")\"");
        return n;
    }
    parser_expected(p, "an expression");
    return parser_node(p, N_CONST);
}

/* ---- endings: . [] () | is ---- */

static void parse_arguments(Parser *p, Arguments *out)
{
    NodeList by_position = { 0 }, named = { 0 };
    Str names[16] = { { 0 } };
    advance(p);
    while (!p->failed && !is_op(p, ')')) {
        if (by_position.n + named.n) parser_expect_op(p, ',', "\",\" or \")\"");
        if (is_op(p, ')')) break;
        if (is_op(p, '*') || is_op(p, OP('*', '*'))) parser_fail(p, "* and ** in a call are not supported");
        if (current(p)->type == T_NAME && p->tokens[p->at + 1].type == T_OP && p->tokens[p->at + 1].op == '=') {
            if (named.n == COUNT(names)) parser_fail(p, "a call has more than %d named arguments", COUNT(names));
            else names[named.n] = current(p)->text;
            p->at += 2;
            node_list_add(p, &named, parse_expression(p));
        } else {
            if (named.n) parser_fail(p, "an argument by position follows a named one");
            node_list_add(p, &by_position, parse_expression(p));
        }
    }
    parser_expect_op(p, ')', "\")\"");
    *out = (Arguments){ .n = by_position.n, .n_named = named.n };
    out->values = parser_take(p, (size_t)by_position.n + (size_t)named.n, sizeof *out->values);
    out->names = parser_take(p, (size_t)named.n, sizeof *out->names);
    if (p->failed) return;
    if (by_position.n) memcpy(out->values, by_position.items, (size_t)by_position.n * sizeof *out->values);
    if (named.n) memcpy(out->values + by_position.n, named.items, (size_t)named.n * sizeof *out->values);
    memcpy(out->names, names, (size_t)named.n * sizeof *out->names);
}

static Node *parse_call(Parser *p, Node *callee)
{
    Node *n = parser_node(p, N_CALL);
    n->call.callee = callee;
    parse_arguments(p, &n->call.arguments);
    return n;
}

/* Behind a dot: a name, or a number as in list.0 */
Node *parse_attribute(Parser *p, Node *object)
{
    advance(p);
    if (current(p)->type == T_INT) {
        Node *n = parser_node(p, N_ITEM);
        n->item.object = object;
        n->item.index = parse_number(p);
        return n;
    }
    Node *n = parser_node(p, N_ATTRIBUTE);
    n->attribute.object = object;
    n->attribute.name = parser_expect_name(p);
    return n;
}

static bool at_slice_end(const Parser *p) { return is_op(p, ':') || is_op(p, ']') || p->failed; }

static Node *parse_slice(Parser *p, Node *object, Node *start)
{
    Node *n = parser_node(p, N_SLICE);
    n->slice.object = object;
    n->slice.start = start;
    advance(p); /* the first colon */
    if (!at_slice_end(p)) n->slice.stop = parse_expression(p);
    if (skip_op(p, ':') && !at_slice_end(p)) n->slice.step = parse_expression(p);
    parser_expect_op(p, ']', "\"]\"");
    return n;
}

static Node *parse_subscript(Parser *p, Node *object)
{
    advance(p);
    Node *start = is_op(p, ':') ? NULL : parse_expression(p);
    if (is_op(p, ':')) return parse_slice(p, object, start);
    Node *n = parser_node(p, N_ITEM);
    n->item.object = object;
    n->item.index = start;
    parser_expect_op(p, ']', "\"]\"");
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
    Str name = parser_expect_name(p);
    while (!p->failed && skip_op(p, '.')) {
        Str last = parser_expect_name(p);
        if (!p->failed) name.len = (size_t)(last.data + last.len - name.data);
    }
    return name;
}

static Node *parse_filter(Parser *p, Node *input)
{
    advance(p);
    Node *n = parser_node(p, N_FILTER);
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
    Node *n = parser_node(p, N_TEST);
    n->apply.input = input;
    n->apply.name = expect_builtin_name(p);
    n->apply.builtin = test_find(n->apply.name);
    if (is_op(p, '(')) {
        parse_arguments(p, &n->apply.arguments);
    } else if (bare_argument_follows(p)) {
        n->apply.arguments.values = parser_take(p, 1, sizeof(Node *));
        Node *argument = parse_postfix(p, parse_primary(p));
        if (p->failed) return n;
        n->apply.arguments.values[0] = argument;
        n->apply.arguments.n = 1;
    }
    if (!negated) return n;
    Node *not_it = parser_node(p, N_NOT);
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
    Node *n = parser_node(p, is_op(p, '-') ? N_NEGATE : N_PLUS);
    advance(p);
    n->operand = parse_unary(p, false);
    return n;
}

static Node *parse_unary(Parser *p, bool with_filters)
{
    if (!parser_enter(p)) return parser_node(p, N_CONST);
    Node *n = is_op(p, '-') || is_op(p, '+') ? parse_sign(p) : parse_primary(p);
    n = parse_postfix(p, n);
    if (with_filters) n = parse_filters(p, n);
    parser_leave(p);
    return n;
}

static Node *parse_operand(Parser *p) { return parse_unary(p, true); }

/* Reads "operand (op operand)*" of one precedence. read_op gives the operator and moves behind it, 0 = another
 * follows. */
static Node *parse_chain(Parser *p, NodeKind kind, int (*read_op)(Parser *), Node *(*parse_tighter)(Parser *))
{
    Node *first = parse_tighter(p);
    Operand *rest = NULL;
    int n = 0, capacity = 0, op;
    while (!p->failed && (op = read_op(p)) != 0) {
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 4;
            Operand *more = parser_take(p, (size_t)capacity, sizeof *more);
            if (!more) break;
            if (n) memcpy(more, rest, (size_t)n * sizeof *more);
            rest = more;
        }
        rest[n++] = (Operand){ op, parse_tighter(p) };
    }
    if (n == 0) return first;
    Node *node = parser_node(p, kind);
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
    do node_list_add(p, &list, parse_item(p));
    while (!p->failed && skip(p));
    return list.n == 1 ? list.items[0] : parser_list(p, kind, &list);
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
    if (!parser_enter(p)) return parser_node(p, N_CONST);
    Node *n = parser_node(p, N_NOT);
    advance(p);
    n->operand = parse_not(p);
    parser_leave(p);
    return n;
}

static Node *parse_and(Parser *p) { return parse_joined(p, N_AND, skip_and, parse_not); }
Node *parse_or(Parser *p) { return parse_joined(p, N_OR, skip_or, parse_and); }

Node *parse_expression(Parser *p)
{
    if (!parser_enter(p)) return parser_node(p, N_CONST);
    Node *n = parse_or(p);
    while (!p->failed && is_word(p, "if")) {
        Node *conditional = parser_node(p, N_CONDITIONAL);
        advance(p);
        conditional->conditional.then = n;
        conditional->conditional.test = parse_or(p);
        if (skip_word(p, "else")) conditional->conditional.otherwise = parse_expression(p);
        n = conditional;
    }
    parser_leave(p);
    return n;
}
