/* Expressions to values, with Python's rules and Python's words when something is wrong. */
#include "text/jinja_eval_impl.h"

#include <math.h>
#include <stdio.h>

/* ---- failing and limits ---- */

static Value fail_with(Interp *in, Status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static Value fail_with(Interp *in, Status status, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!in->failed) in->status = error_set(in->err, status, "%s", text);
    in->failed = true;
    return value_undefined(UNDEFINED_SAID, V_NONE, STR(""));
}

Value interp_fail(Interp *in, const char *format, ...)
{
    char what[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return fail_with(in, ERR_INPUT, "the chat template failed in line %d: %s", in->line, what);
}

Value interp_say(Interp *in, Str message)
{
    int n = (int)(message.len < 400 ? message.len : 400);
    return fail_with(in, ERR_INPUT, "the chat template refuses this conversation: %.*s", n, message.data);
}

Value interp_limit(Interp *in, const char *what, long long limit)
{
    return fail_with(in, ERR_INPUT, "the chat template ran over its limit of %lld %s", limit, what);
}

Value interp_nomem(Interp *in)
{
    return fail_with(in, ERR_NOMEM, "no memory to render the chat template");
}

bool interp_charge(Interp *in, int64_t steps)
{
    in->steps += steps;
    if (in->steps > MAX_RENDER_STEPS) interp_limit(in, "steps", MAX_RENDER_STEPS);
    return !in->failed;
}

bool interp_charge_bytes(Interp *in, size_t n)
{
    return interp_charge(in, (int64_t)(n >> 10));
}

bool interp_charge_items(Interp *in, int64_t n)
{
    return interp_charge(in, n >> 4);
}

bool interp_enter(Interp *in)
{
    if (in->nesting == MAX_RENDER_NESTING) interp_limit(in, "levels of nesting", MAX_RENDER_NESTING);
    if (in->failed) return false;
    in->nesting++;
    return true;
}

void interp_leave(Interp *in)
{
    in->nesting--;
}

void *interp_take(Interp *in, size_t n, size_t item_bytes)
{
    void *p = in->failed ? NULL : arena_alloc_array(&in->arena, n ? n : 1, item_bytes);
    if (p || in->failed) return p;
    if (arena_refusal(&in->arena, n * item_bytes) == ERR_INPUT) interp_limit(in, "bytes of memory", MAX_RENDER_MEMORY);
    else interp_nomem(in);
    return NULL;
}

/* ---- names ---- */

static Value lookup(Interp *in, int symbol)
{
    for (int i = in->n_locals; i > in->frame_base; i--) {
        if (in->locals[i - 1].symbol == symbol) return in->locals[i - 1].value;
    }
    interp_charge_items(in, in->n_locals - in->frame_base);
    return in->globals[symbol];
}

void local_set(Interp *in, int symbol, Value value)
{
    for (int i = in->n_locals; i > in->scope_base; i--) {
        if (in->locals[i - 1].symbol != symbol) continue;
        in->locals[i - 1].value = value;
        return;
    }
    interp_charge_items(in, in->n_locals - in->scope_base);
    if (in->n_locals == in->local_capacity) {
        int capacity = in->local_capacity ? 2 * in->local_capacity : 64;
        Binding *more = interp_array(in, Binding, capacity);
        if (!more) return;
        if (in->n_locals) memcpy(more, in->locals, (size_t)in->n_locals * sizeof *more);
        in->locals = more;
        in->local_capacity = capacity;
    }
    in->locals[in->n_locals++] = (Binding){ symbol, value };
}

/* ---- attributes and items ---- */

static Value loop_attribute(Interp *in, const Loop *loop, Str name)
{
    static const struct {
        Str  name;
        char what;
    } known[] = { { { "index", 5 }, '1' },     { { "index0", 6 }, '0' },   { { "first", 5 }, 'f' },
                  { { "last", 4 }, 'l' },      { { "length", 6 }, 'n' },   { { "revindex", 8 }, 'r' },
                  { { "revindex0", 9 }, 'R' }, { { "previtem", 8 }, 'p' }, { { "nextitem", 8 }, 'x' },
                  { { "depth", 5 }, 'd' },     { { "depth0", 6 }, 'D' } };
    int64_t at = loop->at, n = loop->items->n;
    int i = 0;
    while (i < COUNT(known) && !str_equal(known[i].name, name)) i++;
    switch (i < COUNT(known) ? known[i].what : '?') {
    case '1': return value_int(at + 1);
    case '0': return value_int(at);
    case 'f': return value_bool(at == 0);
    case 'l': return value_bool(at == n - 1);
    case 'n': return value_int(n);
    case 'r': return value_int(n - at);
    case 'R': return value_int(n - at - 1);
    case 'd': return value_int(1); /* only recursive loops go deeper */
    case 'D': return value_int(0);
    case 'p':
        return at > 0 ? loop->items->items[at - 1]
                      : value_undefined(UNDEFINED_SAID, 0, STR("there is no previous item"));
    case 'x':
        return at + 1 < n ? loop->items->items[at + 1]
                          : value_undefined(UNDEFINED_SAID, 0, STR("there is no next item"));
    default: return value_undefined(UNDEFINED_ATTRIBUTE, V_LOOP, name);
    }
}

/* What getattr() finds: methods and the attributes of loops and namespaces. V_MISSING when nothing. */
static Value own_attribute(Interp *in, Value object, Str name)
{
    if (object.type == V_LOOP) {
        Value v = loop_attribute(in, object.loop, name);
        if (v.type != V_UNDEFINED || v.kind == UNDEFINED_SAID) return v;
    }
    if (object.type == V_NAMESPACE) {
        for (int i = 0; i < object.ns->n; i++) {
            if (str_equal(object.ns->names[i], name)) return object.ns->values[i];
        }
    }
    if (method_is_unsafe(object, name)) return value_undefined(UNDEFINED_UNSAFE, object.type, name);
    const Builtin *builtin = method_find(object, name);
    Method *method = builtin ? interp_array(in, Method, 1) : NULL;
    if (!method) return (Value){ .type = V_MISSING };
    *method = (Method){ object, builtin };
    return (Value){ .type = V_METHOD, .method = method };
}

/* The methods come first, as in Jinja2: message.items is the method, message['items'] the entry. */
Value value_attribute(Interp *in, Value object, Str name)
{
    if (object.type == V_UNDEFINED) return value_use_undefined(in, object);
    Value own = own_attribute(in, object, name);
    if (own.type != V_MISSING) return own;
    const Value *entry = object.type == V_DICT ? dict_find(in, object.dict, value_str(name)) : NULL;
    return entry ? *entry : value_undefined(UNDEFINED_ATTRIBUTE, object.type, name);
}

/* The character of s with index i, counted from the end when negative; V_MISSING outside. */
static Value string_item(Interp *in, Str s, int64_t i)
{
    Value missing = { .type = V_MISSING };
    if (!interp_charge(in, (int64_t)(s.len / 64))) return missing;
    if (i < 0) i += (int64_t)utf8_count(s.data, s.len);
    const char *p = s.data, *end = s.data + s.len;
    if (i < 0) return missing;
    while (p < end) {
        const char *begin = p;
        utf8_read(&p);
        if (i-- == 0) return value_str((Str){ begin, (size_t)(p - begin) });
    }
    return missing;
}

static Value indexed_item(Interp *in, Value object, int64_t i)
{
    if (object.type == V_STR) return string_item(in, object.s, i);
    if (object.type != V_LIST && object.type != V_TUPLE) return (Value){ .type = V_MISSING };
    if (i < 0) i += object.list->n;
    return i >= 0 && i < object.list->n ? object.list->items[i] : (Value){ .type = V_MISSING };
}

Value value_item(Interp *in, Value object, Value index)
{
    if (object.type == V_UNDEFINED) return value_use_undefined(in, object);
    if (object.type == V_DICT) {
        const Value *entry = dict_find(in, object.dict, index);
        if (entry) return *entry;
    } else if (index.type == V_INT || index.type == V_BOOL) {
        Value item = indexed_item(in, object, index.type == V_INT ? index.i : index.b);
        if (item.type != V_MISSING) return item;
    }
    if (index.type != V_STR) return value_undefined(UNDEFINED_ELEMENT, object.type, value_text(in, index));
    Value own = own_attribute(in, object, index.s);
    return own.type != V_MISSING ? own : value_undefined(UNDEFINED_ATTRIBUTE, object.type, index.s);
}

/* ---- slices ---- */

typedef struct Range {
    int64_t start, step, count;
} Range;

/* One end of a slice of n items: none, or counted from the end, and never outside. */
static int64_t slice_end(Interp *in, const Node *n, int64_t length, int64_t missing, int64_t low, int64_t high)
{
    if (!n) return missing;
    Value v = eval(in, n);
    if (v.type == V_NONE) return missing;
    if (v.type != V_INT && v.type != V_BOOL) {
        interp_fail(in, "slice indices must be integers or None or have an __index__ method");
        return 0;
    }
    int64_t i = v.type == V_INT ? v.i : v.b;
    if (i < 0) i = i < -length ? low : i + length;
    return i < low ? low : i > high ? high : i;
}

static int64_t slice_step(Interp *in, const Node *n)
{
    Value v = n ? eval(in, n) : value_int(1);
    if (v.type == V_NONE) return 1;
    if (v.type != V_INT) interp_fail(in, "slice indices must be integers or None or have an __index__ method");
    return v.type == V_INT ? v.i : 1;
}

static Range slice_range(Interp *in, const Node *n, int64_t length)
{
    int64_t step = slice_step(in, n->slice.step);
    if (step == 0) interp_fail(in, "slice step cannot be zero");
    if (in->failed) return (Range){ 0 };
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
    int64_t start = slice_end(in, n->slice.start, length, step > 0 ? 0 : length - 1, low, high);
    int64_t stop = slice_end(in, n->slice.stop, length, step > 0 ? length : -1, low, high);
    int64_t distance = step > 0 ? stop - start : start - stop;
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    return (Range){ start, step, distance > 0 ? (int64_t)(((uint64_t)distance - 1) / stride) + 1 : 0 };
}

static Value slice_text(Interp *in, Str s, const Range *r)
{
    const List *all = value_items(in, value_str(s));
    Buf b;
    text_begin(&b);
    for (int64_t k = 0; k < r->count && !in->failed; k++) {
        Str c = all->items[r->start + k * r->step].s;
        buf_append(&b, c.data, c.len);
    }
    return text_end(in, &b);
}

/* A slice of a long ASCII string with step 1 is a view; most are. */
static bool is_plain_range(const Range *r, Str s, int64_t length)
{
    return r->step == 1 && (size_t)length == s.len;
}

static Value eval_slice(Interp *in, const Node *n)
{
    Value object = eval(in, n->slice.object);
    if (object.type == V_UNDEFINED) return value_use_undefined(in, object);
    if (object.type != V_STR && object.type != V_LIST && object.type != V_TUPLE) {
        return interp_fail(in, "'%s' object cannot be sliced", value_type_name(object));
    }
    int64_t length = value_length(in, object);
    Range r = slice_range(in, n, length);
    if (in->failed || !interp_charge_items(in, r.count)) return object;
    if (object.type == V_STR) {
        if (is_plain_range(&r, object.s, length))
            return value_str((Str){ object.s.data + (r.count ? r.start : 0), (size_t)r.count });
        return slice_text(in, object.s, &r);
    }
    Value *items = interp_array(in, Value, r.count);
    for (int64_t k = 0; items && k < r.count; k++) items[k] = object.list->items[r.start + k * r.step];
    return value_list(in, object.type, items, r.count);
}

/* ---- arithmetic ---- */

static const char *op_text(int op, char out[3])
{
    out[0] = (char)(op & 0xFF);
    out[1] = (char)(op >> 8);
    out[2] = '\0';
    return out;
}

static Value operands_wrong(Interp *in, int op, Value a, Value b)
{
    char text[3];
    if (op == '+' && a.type == V_STR)
        return interp_fail(in, "can only concatenate str (not \"%s\") to str", value_type_name(b));
    if (op == '+' && a.type == V_LIST)
        return interp_fail(in, "can only concatenate list (not \"%s\") to list", value_type_name(b));
    if (op == '%' && a.type == V_STR) return interp_fail(in, "formatting a string with %% is not supported");
    return interp_fail(in, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op, text), value_type_name(a),
                       value_type_name(b));
}

static Value int_power(Interp *in, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    if (exponent < 0) return value_float(pow((double)base, (double)exponent));
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
            return interp_fail(in, "an integer is too large");
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return interp_fail(in, "an integer is too large");
    }
    return value_int(result);
}

static Value int_divide(Interp *in, int64_t a, int64_t b, bool remainder)
{
    if (b == 0) return interp_fail(in, "integer division or modulo by zero");
    if (b == -1)
        return remainder ? value_int(0) : a == INT64_MIN ? interp_fail(in, "an integer is too large") : value_int(-a);
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) { /* Python rounds down, C to zero */
        quotient--;
        rest += b;
    }
    return value_int(remainder ? rest : quotient);
}

static Value int_arithmetic(Interp *in, int op, int64_t a, int64_t b)
{
    int64_t result;
    bool overflow = false;
    switch (op) {
    case '+': overflow = __builtin_add_overflow(a, b, &result); break;
    case '-': overflow = __builtin_sub_overflow(a, b, &result); break;
    case '*': overflow = __builtin_mul_overflow(a, b, &result); break;
    case '/': return b ? value_float((double)a / (double)b) : interp_fail(in, "division by zero");
    case OP('/', '/'): return int_divide(in, a, b, false);
    case '%': return int_divide(in, a, b, true);
    default: return int_power(in, a, b);
    }
    return overflow ? interp_fail(in, "an integer is too large") : value_int(result);
}

static Value float_arithmetic(Interp *in, int op, double a, double b)
{
    if (b == 0 && (op == '/' || op == OP('/', '/') || op == '%')) return interp_fail(in, "float division by zero");
    switch (op) {
    case '+': return value_float(a + b);
    case '-': return value_float(a - b);
    case '*': return value_float(a * b);
    case '/': return value_float(a / b);
    case OP('/', '/'): return value_float(floor(a / b));
    case '%': {
        double rest = fmod(a, b);
        return value_float(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    }
    default: return value_float(pow(a, b));
    }
}

static Value join_lists(Interp *in, Value a, Value b)
{
    int64_t n = a.list->n + b.list->n;
    Value *items = interp_charge_items(in, n) ? interp_array(in, Value, n) : NULL;
    if (items && a.list->n) memcpy(items, a.list->items, (size_t)a.list->n * sizeof *items);
    if (items && b.list->n) memcpy(items + a.list->n, b.list->items, (size_t)b.list->n * sizeof *items);
    return value_list(in, a.type, items, n);
}

static Value join_strings(Interp *in, Str a, Str b)
{
    if (b.len == 0 || a.len == 0) return value_str(a.len ? a : b);
    if (a.len + b.len > MAX_RENDER_BYTES) return interp_limit(in, "bytes in one string", MAX_RENDER_BYTES);
    char *joined = interp_charge_bytes(in, a.len + b.len) ? interp_array(in, char, a.len + b.len) : NULL;
    if (!joined) return value_str(a);
    memcpy(joined, a.data, a.len);
    memcpy(joined + a.len, b.data, b.len);
    return value_str((Str){ joined, a.len + b.len });
}

/* 'ab' * 3 and [1] * 3 */
static Value repeat(Interp *in, Value v, int64_t times)
{
    Buf b;
    ListBuilder l = { 0 };
    text_begin(&b);
    for (int64_t i = 0; i < times && !in->failed && !b.failed; i++) {
        if (!interp_charge(in, 1)) break;
        if (v.type == V_STR) value_write(in, &b, v);
        for (int64_t k = 0; v.type != V_STR && k < v.list->n && interp_charge(in, 1); k++)
            list_push(in, &l, v.list->items[k]);
    }
    Value text = text_end(in, &b);
    return v.type == V_STR ? text : value_list(in, v.type, l.items, l.n);
}

static bool can_repeat(Value v, Value times)
{
    return (v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE) && (times.type == V_INT || times.type == V_BOOL);
}

Value value_arithmetic(Interp *in, int op, Value a, Value b)
{
    if (in->failed) return a;
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED) return value_use_undefined(in, a.type == V_UNDEFINED ? a : b);
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type == V_FLOAT || b.type == V_FLOAT) return float_arithmetic(in, op, value_number(a), value_number(b));
        return int_arithmetic(in, op, a.type == V_BOOL ? a.b : a.i, b.type == V_BOOL ? b.b : b.i);
    }
    if (op == '+' && a.type == V_STR && b.type == V_STR) return join_strings(in, a.s, b.s);
    if (op == '+' && a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) return join_lists(in, a, b);
    if (op == '*' && can_repeat(a, b)) return repeat(in, a, b.type == V_INT ? b.i : b.b);
    if (op == '*' && can_repeat(b, a)) return repeat(in, b, a.type == V_INT ? a.i : a.b);
    return operands_wrong(in, op, a, b);
}

/* a + b + c of strings is one copy of each, however many there are: a message may be long. Takes as many operands as
 * are strings; *done says how many. */
static Value add_strings(Interp *in, Value first, const Node *n, int *done)
{
    Buf b;
    int i = *done;
    Value next = first;
    text_begin(&b);
    buf_append(&b, first.s.data, first.s.len);
    for (; i < n->chain.n && n->chain.rest[i].op == '+' && !in->failed; i++) {
        next = eval(in, n->chain.rest[i].node);
        if (next.type != V_STR) break;
        buf_append(&b, next.s.data, next.s.len);
    }
    Value sum = text_end(in, &b);
    if (next.type != V_STR) { /* adding this one is for value_arithmetic() to refuse */
        sum = value_arithmetic(in, '+', sum, next);
        i++;
    }
    *done = i;
    return sum;
}

static Value eval_arithmetic(Interp *in, const Node *n)
{
    Value v = eval(in, n->chain.first);
    for (int i = 0; i < n->chain.n && !in->failed;) {
        if (v.type == V_STR && n->chain.rest[i].op == '+') {
            v = add_strings(in, v, n, &i);
        } else {
            v = value_arithmetic(in, n->chain.rest[i].op, v, eval(in, n->chain.rest[i].node));
            i++;
        }
    }
    return v;
}

static Value eval_sign(Interp *in, const Node *n)
{
    Value v = eval(in, n->operand);
    if (v.type == V_UNDEFINED) return value_use_undefined(in, v);
    if (!value_is_number(v)) {
        return interp_fail(in, "bad operand type for unary %c: '%s'", n->kind == N_NEGATE ? '-' : '+',
                           value_type_name(v));
    }
    if (v.type == V_FLOAT) return value_float(n->kind == N_NEGATE ? -v.f : v.f);
    int64_t i = v.type == V_BOOL ? v.b : v.i;
    return n->kind == N_NEGATE ? int_arithmetic(in, '-', 0, i) : value_int(i);
}

/* ---- comparison and logic ---- */

static bool compare(Interp *in, int op, Value a, Value b)
{
    int order;
    switch (op) {
    case OP_IN: return value_contains(in, b, a);
    case OP_NOT_IN: return !value_contains(in, b, a);
    case OP('=', '='): return value_equal(in, a, b);
    case OP('!', '='): return !value_equal(in, a, b);
    case '<': order = value_order(in, a, b, "<"); return order == -1;
    case '>': order = value_order(in, a, b, ">"); return order == 1;
    case OP('<', '='): order = value_order(in, a, b, "<="); return order == -1 || order == 0;
    default: order = value_order(in, a, b, ">="); return order == 1 || order == 0;
    }
}

static Value eval_compare(Interp *in, const Node *n)
{
    Value left = eval(in, n->chain.first);
    for (int i = 0; i < n->chain.n && !in->failed; i++) {
        Value right = eval(in, n->chain.rest[i].node);
        if (in->failed || !compare(in, n->chain.rest[i].op, left, right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

static Value eval_logic(Interp *in, const Node *n)
{
    bool stop_at = n->kind == N_OR;
    Value v = value_none();
    for (int i = 0; i < n->list.n && !in->failed; i++) {
        v = eval(in, n->list.items[i]);
        if (value_truth(v) == stop_at) break;
    }
    return v;
}

static Value eval_conditional(Interp *in, const Node *n)
{
    if (value_truth(eval(in, n->conditional.test))) return eval(in, n->conditional.then);
    if (n->conditional.otherwise) return eval(in, n->conditional.otherwise);
    return value_undefined(UNDEFINED_SAID, V_NONE, STR("the inline if-expression is false and has no else"));
}

/* ---- containers ---- */

static Value eval_list(Interp *in, const Node *n)
{
    Value *items = interp_array(in, Value, n->list.n);
    for (int i = 0; items && i < n->list.n; i++) items[i] = eval(in, n->list.items[i]);
    return value_list(in, n->kind == N_LIST ? V_LIST : V_TUPLE, items, n->list.n);
}

static Value eval_dict(Interp *in, const Node *n)
{
    int64_t capacity = n->list.n / 2;
    Dict *d = interp_array(in, Dict, 1);
    Value *keys = interp_array(in, Value, capacity), *values = interp_array(in, Value, capacity);
    if (in->failed) return value_none();
    *d = (Dict){ keys, values, 0 };
    for (int i = 0; i < n->list.n && !in->failed; i += 2) {
        Value key = eval(in, n->list.items[i]), value = eval(in, n->list.items[i + 1]);
        if (key.type == V_LIST || key.type == V_DICT)
            return interp_fail(in, "unhashable type: '%s'", value_type_name(key));
        const Value *known = dict_find(in, d, key);
        int64_t at = known ? known - values : d->n++;
        if (!known) keys[at] = key;
        values[at] = value;
    }
    return (Value){ .type = V_DICT, .dict = d };
}

static Value eval_concat(Interp *in, const Node *n)
{
    Buf b;
    text_begin(&b);
    for (int i = 0; i < n->list.n && !in->failed && !b.failed; i++) value_write(in, &b, eval(in, n->list.items[i]));
    return text_end(in, &b);
}

/* ---- calls ---- */

static CallArguments eval_arguments(Interp *in, const Arguments *a)
{
    int n = a->n + a->n_named;
    Value *values = interp_array(in, Value, n);
    for (int i = 0; values && i < n; i++) values[i] = eval(in, a->values[i]);
    return in->failed ? (CallArguments){ 0 } : (CallArguments){ a->n, a->n_named, values, a->names };
}

static int n_parameters(const Builtin *b)
{
    int n = 0;
    while (n < MAX_PARAMETERS && b->parameters[n]) n++;
    return n;
}

static void bind_named(Interp *in, const Builtin *b, const char *kind, const CallArguments *a,
                       Value slots[MAX_PARAMETERS])
{
    for (int i = 0; i < a->n_named; i++) {
        int at = 0, n = n_parameters(b);
        while (at < n && !str_equal(str_of(b->parameters[at]), a->names[i])) at++;
        if (at == n || slots[at].type != V_MISSING) {
            int len = (int)(a->names[i].len < 60 ? a->names[i].len : 60);
            interp_fail(in, "%s %s() cannot take the argument '%.*s'", kind, b->name, len, a->names[i].data);
            return;
        }
        slots[at] = a->values[a->n + i];
    }
}

Value call_builtin(Interp *in, const Builtin *b, const char *kind, Value self, const CallArguments *a)
{
    Value slots[MAX_PARAMETERS];
    if (in->failed) return self;
    if (b->call_any) return b->call_any(in, self, a);
    if (a->n > n_parameters(b)) {
        return interp_fail(in, "%s %s() takes at most %d arguments, got %d", kind, b->name, n_parameters(b), a->n);
    }
    for (int i = 0; i < MAX_PARAMETERS; i++) slots[i] = i < a->n ? a->values[i] : (Value){ .type = V_MISSING };
    bind_named(in, b, kind, a, slots);
    for (int i = 0; i < b->n_required; i++) {
        if (slots[i].type == V_MISSING)
            interp_fail(in, "%s %s() misses the argument '%s'", kind, b->name, b->parameters[i]);
    }
    return in->failed ? self : b->call(in, self, slots);
}

static Value eval_call(Interp *in, const Node *n)
{
    Value callee = eval(in, n->call.callee);
    if (callee.type == V_UNDEFINED) return value_use_undefined(in, callee);
    CallArguments a = eval_arguments(in, &n->call.arguments);
    if (in->failed) return callee;
    switch ((ValueType)callee.type) {
    case V_METHOD: return call_builtin(in, callee.method->builtin, "method", callee.method->self, &a);
    case V_FUNCTION: return call_builtin(in, callee.function, "function", value_none(), &a);
    case V_MACRO: return call_macro(in, callee.macro, &a);
    default: return interp_fail(in, "'%s' object is not callable", value_type_name(callee));
    }
}

static Value eval_apply(Interp *in, const Node *n)
{
    bool is_filter = n->kind == N_FILTER;
    Value input = eval(in, n->apply.input);
    if (!n->apply.builtin) {
        int len = (int)(n->apply.name.len < 60 ? n->apply.name.len : 60);
        return interp_fail(in, "there is no %s named '%.*s'", is_filter ? "filter" : "test", len, n->apply.name.data);
    }
    CallArguments a = eval_arguments(in, &n->apply.arguments);
    return call_builtin(in, n->apply.builtin, is_filter ? "filter" : "test", input, &a);
}

/* ---- all ---- */

static Value eval_node(Interp *in, const Node *n)
{
    switch (n->kind) {
    case N_CONST: return n->constant;
    case N_NAME: return lookup(in, n->symbol);
    case N_LIST:
    case N_TUPLE: return eval_list(in, n);
    case N_DICT: return eval_dict(in, n);
    case N_CONCAT: return eval_concat(in, n);
    case N_AND:
    case N_OR: return eval_logic(in, n);
    case N_ARITHMETIC: return eval_arithmetic(in, n);
    case N_COMPARE: return eval_compare(in, n);
    case N_NOT: return value_bool(!value_truth(eval(in, n->operand)));
    case N_NEGATE:
    case N_PLUS: return eval_sign(in, n);
    case N_CONDITIONAL: return eval_conditional(in, n);
    case N_ATTRIBUTE: return value_attribute(in, eval(in, n->attribute.object), n->attribute.name);
    case N_ITEM: {
        Value object = eval(in, n->item.object);
        return value_item(in, object, eval(in, n->item.index));
    }
    case N_SLICE: return eval_slice(in, n);
    case N_CALL: return eval_call(in, n);
    case N_FILTER:
    case N_TEST: return eval_apply(in, n);
    default: break;
    }
    CHECK(!"an expression");
    return value_none();
}

Value eval(Interp *in, const Node *n)
{
    if (!interp_charge(in, 1) || !interp_enter(in)) return value_none();
    in->line = n->line;
    Value v = eval_node(in, n);
    interp_leave(in);
    return v;
}
