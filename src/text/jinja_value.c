/* What Python says about values: truth, equality, order, str() and repr(). */
#include "text/jinja_eval_impl.h"

#include <math.h>
#include <stdio.h>
#include <utf8proc.h>

const char *value_type_name(Value v)
{
    switch ((ValueType)v.type) {
    case V_MISSING:
    case V_UNDEFINED: return "Undefined";
    case V_NONE: return "NoneType";
    case V_BOOL: return "bool";
    case V_INT: return "int";
    case V_FLOAT: return "float";
    case V_STR: return "str";
    case V_LIST: return "list";
    case V_TUPLE: return "tuple";
    case V_GENERATOR: return "generator";
    case V_DICT: return "dict";
    case V_NAMESPACE: return "Namespace";
    case V_MACRO: return "Macro";
    case V_FUNCTION: return "function";
    case V_METHOD: return "method";
    case V_LOOP: return "LoopContext";
    }
    return "object";
}

/* ---- undefined ---- */

Value value_undefined(UndefinedKind kind, ValueType owner, Str name)
{
    return (Value){ .type = V_UNDEFINED, .kind = (uint8_t)kind, .owner = (uint8_t)owner, .s = name };
}

Value value_use_undefined(Interp *in, Value u)
{
    char owner[40];
    int n = (int)(u.s.len < 200 ? u.s.len : 200);
    snprintf(owner, sizeof owner, u.owner == V_NONE ? "None" : "%s object",
             value_type_name((Value){ .type = u.owner }));
    switch ((UndefinedKind)u.kind) {
    case UNDEFINED_NAME: return interp_fail(in, "'%.*s' is undefined", n, u.s.data);
    case UNDEFINED_ATTRIBUTE: return interp_fail(in, "'%s' has no attribute '%.*s'", owner, n, u.s.data);
    case UNDEFINED_ELEMENT: return interp_fail(in, "%s has no element %.*s", owner, n, u.s.data);
    case UNDEFINED_UNSAFE: return interp_fail(in, "access to attribute '%.*s' of a %s is unsafe", n, u.s.data, owner);
    case UNDEFINED_SAID: return interp_fail(in, "%.*s", n, u.s.data);
    }
    return u;
}

/* ---- making ---- */

Value value_copy(Interp *in, const char *text, size_t n)
{
    char *copy = interp_array(in, char, n + 1);
    if (!copy) return value_str(STR(""));
    if (n) memcpy(copy, text, n);
    return value_str((Str){ copy, n });
}

Value value_list(Interp *in, ValueType type, Value *items, int64_t n)
{
    List *list = interp_array(in, List, 1);
    if (!list) return value_undefined(UNDEFINED_SAID, V_NONE, STR(""));
    *list = (List){ items, items ? n : 0 };
    return (Value){ .type = (uint8_t)type, .list = list };
}

void list_push(Interp *in, ListBuilder *l, Value v)
{
    if (l->n == l->capacity) {
        int64_t capacity = l->capacity ? 2 * l->capacity : 8;
        Value *more = interp_array(in, Value, capacity);
        if (!more) return;
        if (l->n) memcpy(more, l->items, (size_t)l->n * sizeof *more);
        l->items = more;
        l->capacity = capacity;
    }
    l->items[l->n++] = v;
}

void text_begin(Buf *b)
{
    buf_init(b, MAX_RENDER_BYTES);
}

/* A Buf does not say whether its limit or the system stopped it. Doubling fails for want of memory while it is less
 * than half full; single pieces that are larger than the rest of it are refused before they are appended. */
void text_check(Interp *in, const Buf *b)
{
    if (!b->failed) return;
    if (b->len < b->limit / 2) interp_nomem(in);
    else interp_limit(in, "bytes in one string", MAX_RENDER_BYTES);
}

Value text_end(Interp *in, Buf *b)
{
    text_check(in, b);
    Value v = in->failed ? value_str(STR("")) : value_copy(in, b->data, b->len);
    if (!in->failed) interp_charge_bytes(in, b->len);
    buf_free(b);
    return v;
}

/* ---- truth, numbers, length ---- */

static bool is_sequence(Value v)
{
    return v.type == V_LIST || v.type == V_TUPLE;
}

bool value_truth(Value v)
{
    switch ((ValueType)v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STR: return v.s.len > 0;
    case V_LIST:
    case V_TUPLE: return v.list->n > 0;
    case V_DICT: return v.dict->n > 0;
    case V_LOOP: return v.loop->items->n > 0;
    default: return true;
    }
}

bool value_is_number(Value v)
{
    return v.type == V_BOOL || v.type == V_INT || v.type == V_FLOAT;
}

double value_number(Value v)
{
    return v.type == V_FLOAT ? v.f : v.type == V_BOOL ? v.b : (double)v.i;
}

int64_t value_length(Interp *in, Value v)
{
    switch ((ValueType)v.type) {
    case V_UNDEFINED: return 0;
    case V_STR: return interp_charge_bytes(in, v.s.len) ? (int64_t)utf8_count(v.s.data, v.s.len) : -1;
    case V_LIST:
    case V_TUPLE: return v.list->n;
    case V_DICT: return v.dict->n;
    case V_LOOP: return v.loop->items->n;
    default: interp_fail(in, "object of type '%s' has no len()", value_type_name(v)); return -1;
    }
}

static const List *characters(Interp *in, Str s)
{
    ListBuilder l = { 0 };
    const char *p = s.data, *end = s.data + s.len;
    while (p < end && !in->failed) {
        const char *begin = p;
        utf8_read(&p);
        list_push(in, &l, value_str((Str){ begin, (size_t)(p - begin) }));
        interp_charge(in, 1);
    }
    return value_list(in, V_LIST, l.items, l.n).list;
}

const List *value_items(Interp *in, Value v)
{
    static const List nothing;
    const List *items = &nothing;
    switch ((ValueType)v.type) {
    case V_UNDEFINED: break;
    case V_LIST:
    case V_TUPLE:
    case V_GENERATOR: items = v.list; break;
    case V_DICT: items = value_list(in, V_LIST, v.dict->keys, v.dict->n).list; break;
    case V_STR: items = characters(in, v.s); break;
    default: interp_fail(in, "'%s' object is not iterable", value_type_name(v));
    }
    return in->failed ? &nothing : items;
}

/* ---- equality and order ---- */

static bool lists_equal(Interp *in, const List *a, const List *b)
{
    if (a->n != b->n) return false;
    for (int64_t i = 0; i < a->n; i++) {
        if (in->failed || !value_equal(in, a->items[i], b->items[i])) return false;
    }
    return true;
}

static bool dicts_equal(Interp *in, const Dict *a, const Dict *b)
{
    if (a->n != b->n) return false;
    for (int64_t i = 0; i < a->n; i++) {
        const Value *other = dict_find(in, b, a->keys[i]);
        if (in->failed || !other || !value_equal(in, a->values[i], *other)) return false;
    }
    return true;
}

static bool walk_equal(Interp *in, Value a, Value b)
{
    if (!interp_charge(in, 1) || !interp_enter(in)) return false;
    bool equal = a.type == V_DICT ? dicts_equal(in, a.dict, b.dict) : lists_equal(in, a.list, b.list);
    interp_leave(in);
    return equal;
}

bool value_equal(Interp *in, Value a, Value b)
{
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type == V_FLOAT || b.type == V_FLOAT) return value_number(a) == value_number(b);
        return (a.type == V_BOOL ? a.b : a.i) == (b.type == V_BOOL ? b.b : b.i);
    }
    if (a.type != b.type) return false;
    switch ((ValueType)a.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: return true;
    case V_STR: return interp_charge_bytes(in, a.s.len < b.s.len ? a.s.len : b.s.len) && str_equal(a.s, b.s);
    case V_LIST:
    case V_TUPLE:
    case V_DICT: return walk_equal(in, a, b);
    default: return a.list == b.list; /* the same thing: all of them are pointers */
    }
}

static int order_of(double a, double b)
{
    return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2;
}

static int order_strings(Str a, Str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n ? memcmp(a.data, b.data, n) : 0; /* bytes of UTF-8 sort as code points do */
    return order ? (order < 0 ? -1 : 1) : order_of((double)a.len, (double)b.len);
}

static int order_lists(Interp *in, const List *a, const List *b, const char *op)
{
    int order = order_of((double)a->n, (double)b->n);
    if (!interp_enter(in)) return 0;
    for (int64_t i = 0; i < a->n && i < b->n && interp_charge(in, 1); i++) {
        if (value_equal(in, a->items[i], b->items[i])) continue;
        order = value_order(in, a->items[i], b->items[i], op);
        break;
    }
    interp_leave(in);
    return order;
}

int value_order(Interp *in, Value a, Value b, const char *op)
{
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED) {
        value_use_undefined(in, a.type == V_UNDEFINED ? a : b);
        return 0;
    }
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type == V_INT && b.type == V_INT) return a.i < b.i ? -1 : a.i > b.i;
        return order_of(value_number(a), value_number(b));
    }
    if (a.type == V_STR && b.type == V_STR) return interp_charge_bytes(in, a.s.len) ? order_strings(a.s, b.s) : 0;
    if (a.type == b.type && is_sequence(a)) return order_lists(in, a.list, b.list, op);
    interp_fail(in, "'%s' not supported between instances of '%s' and '%s'", op, value_type_name(a),
                value_type_name(b));
    return 0;
}

const Value *dict_find(Interp *in, const Dict *d, Value key)
{
    for (int64_t i = 0; i < d->n; i++) {
        bool both_text = key.type == V_STR && d->keys[i].type == V_STR;
        if (both_text ? str_equal(key.s, d->keys[i].s) : value_equal(in, d->keys[i], key)) {
            interp_charge_items(in, i);
            return &d->values[i];
        }
    }
    interp_charge_items(in, d->n);
    return NULL;
}

bool value_contains(Interp *in, Value container, Value item)
{
    if (container.type == V_DICT) {
        if (item.type == V_LIST || item.type == V_DICT) interp_fail(in, "unhashable type: '%s'", value_type_name(item));
        return dict_find(in, container.dict, item) != NULL;
    }
    if (container.type == V_STR) {
        if (item.type != V_STR) {
            interp_fail(in, "'in <string>' requires string as left operand, not %s", value_type_name(item));
            return false;
        }
        if (!interp_charge_bytes(in, container.s.len)) return false;
        return item.s.len == 0 || memmem(container.s.data, container.s.len, item.s.data, item.s.len) != NULL;
    }
    if (container.type == V_NONE || value_is_number(container)) {
        interp_fail(in, "argument of type '%s' is not iterable", value_type_name(container));
        return false;
    }
    const List *items = value_items(in, container);
    for (int64_t i = 0; i < items->n && interp_charge(in, 1); i++) {
        if (value_equal(in, items->items[i], item)) return true;
    }
    return false;
}

/* ---- str() and repr() ---- */

/* str.isprintable() of one character. */
static bool is_printable(uint32_t cp)
{
    if (cp < 0x7F) return cp >= ' ';
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static void write_repr_char(Buf *out, uint32_t cp, char quote)
{
    if (cp == (uint32_t)quote || cp == '\\') buf_printf(out, "\\%c", (char)cp);
    else if (cp == '\n') buf_text(out, "\\n");
    else if (cp == '\r') buf_text(out, "\\r");
    else if (cp == '\t') buf_text(out, "\\t");
    else if (is_printable(cp)) buf_codepoint(out, cp);
    else if (cp <= 0xFF) buf_printf(out, "\\x%02x", cp);
    else if (cp <= 0xFFFF) buf_printf(out, "\\u%04x", cp);
    else buf_printf(out, "\\U%08x", cp);
}

static void write_string_repr(Interp *in, Buf *out, Str s)
{
    bool has_single = s.len && memchr(s.data, '\'', s.len), has_double = s.len && memchr(s.data, '"', s.len);
    char quote = has_single && !has_double ? '"' : '\'';
    const char *p = s.data, *end = s.data + s.len;
    if (!interp_charge(in, (int64_t)(s.len / 32))) return;
    buf_append(out, &quote, 1);
    while (p < end) write_repr_char(out, utf8_read(&p), quote);
    buf_append(out, &quote, 1);
}

static void write_items(Interp *in, Buf *out, const List *list)
{
    for (int64_t i = 0; i < list->n && !in->failed && !out->failed; i++) {
        if (i) buf_text(out, ", ");
        value_write_repr(in, out, list->items[i]);
    }
}

static void write_pairs(Interp *in, Buf *out, const Dict *d)
{
    for (int64_t i = 0; i < d->n && !in->failed && !out->failed; i++) {
        if (i) buf_text(out, ", ");
        value_write_repr(in, out, d->keys[i]);
        buf_text(out, ": ");
        value_write_repr(in, out, d->values[i]);
    }
}

static void write_container(Interp *in, Buf *out, Value v)
{
    if (v.type == V_DICT) {
        buf_text(out, "{");
        write_pairs(in, out, v.dict);
        buf_text(out, "}");
        return;
    }
    buf_text(out, v.type == V_TUPLE ? "(" : "[");
    write_items(in, out, v.list);
    buf_text(out, v.type == V_TUPLE ? (v.list->n == 1 ? ",)" : ")") : "]");
}

void value_write_repr(Interp *in, Buf *out, Value v)
{
    if (!interp_charge(in, 1) || !interp_enter(in)) return;
    switch ((ValueType)v.type) {
    case V_UNDEFINED: buf_text(out, "Undefined"); break;
    case V_STR: write_string_repr(in, out, v.s); break;
    case V_LIST:
    case V_TUPLE:
    case V_DICT: write_container(in, out, v); break;
    default: value_write(in, out, v);
    }
    interp_leave(in);
}

static void write_namespace(Interp *in, Buf *out, const Namespace *ns)
{
    if (!interp_enter(in)) return; /* it can hold itself */
    buf_text(out, "<Namespace {");
    for (int i = 0; i < ns->n && !in->failed && !out->failed; i++) {
        if (i) buf_text(out, ", ");
        write_string_repr(in, out, ns->names[i]);
        buf_text(out, ": ");
        value_write_repr(in, out, ns->values[i]);
    }
    buf_text(out, "}>");
    interp_leave(in);
}

static void write_macro(Interp *in, Buf *out, const Node *macro)
{
    buf_text(out, "<Macro ");
    write_string_repr(in, out, in->t->names[macro->macro.symbol]);
    buf_text(out, ">");
}

void value_write(Interp *in, Buf *out, Value v)
{
    switch ((ValueType)v.type) {
    case V_MISSING:
    case V_UNDEFINED: break;
    case V_NONE: buf_text(out, "None"); break;
    case V_BOOL: buf_text(out, v.b ? "True" : "False"); break;
    case V_INT: buf_printf(out, "%lld", (long long)v.i); break;
    case V_FLOAT: write_float(out, v.f); break;
    case V_STR:
        if (v.s.len > out->limit - out->len) interp_limit(in, "bytes of output", MAX_RENDER_BYTES);
        if (interp_charge_bytes(in, v.s.len)) buf_append(out, v.s.data, v.s.len);
        break;
    case V_LIST:
    case V_TUPLE:
    case V_DICT: value_write_repr(in, out, v); break;
    case V_NAMESPACE: write_namespace(in, out, v.ns); break;
    case V_MACRO: write_macro(in, out, v.macro); break;
    default: buf_printf(out, "<%s>", value_type_name(v));
    }
}

Str value_text(Interp *in, Value v)
{
    Buf b;
    if (v.type == V_STR) return v.s;
    text_begin(&b);
    value_write(in, &b, v);
    return text_end(in, &b).s;
}
