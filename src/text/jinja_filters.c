/* Filters: value|name(arguments). Those that walk a sequence lazily in Jinja2 walk it at once here. */
#include "text/jinja_text_impl.h"

#include <math.h>
#include <stdlib.h>

static bool is_given(Value v) { return v.type != V_MISSING && v.type != V_NONE; }

/* ---- strings ---- */

static Value filter_string(Interp *in, Value self, const Value *a) { return value_str(value_text(in, self)); }
static Value filter_trim(Interp *in, Value self, const Value *a)
{
    return text_strip(in, value_text(in, self), a[0], true, true);
}
static Value filter_lower(Interp *in, Value self, const Value *a)
{
    return text_case(in, value_text(in, self), CASE_LOWER);
}
static Value filter_upper(Interp *in, Value self, const Value *a)
{
    return text_case(in, value_text(in, self), CASE_UPPER);
}

static Value filter_capitalize(Interp *in, Value self, const Value *a)
{
    return text_case(in, value_text(in, self), CASE_CAPITALIZE);
}

static Value filter_replace(Interp *in, Value self, const Value *a)
{
    int64_t max = a[2].type == V_INT ? a[2].i : -1;
    return text_replace(in, value_text(in, self), value_text(in, a[0]), value_text(in, a[1]), max);
}

/* indent(width=4, first=false, blank=false) */
static Value filter_indent(Interp *in, Value self, const Value *a)
{
    if (self.type != V_STR) return interp_fail(in, "indent needs a string, got %s", value_type_name(self));
    Value spaces = is_given(a[0]) ? a[0] : value_int(4);
    int64_t width = spaces.type == V_INT && spaces.i > 0 ? spaces.i : 0;
    Str whole = value_arithmetic(in, '+', self, value_str(STR("\n"))).s; /* so that a last empty line counts */
    const List *lines = text_split_lines(in, whole, false).list;
    bool first = value_truth(a[1]), blank = value_truth(a[2]);
    Buf b;
    if (width > 1000) return interp_fail(in, "indent: at most 1000 columns");
    text_begin(&b);
    for (int64_t i = 0; !in->failed && i < lines->n && interp_charge(in, 1); i++) {
        Str line = lines->items[i].s;
        if (i) buf_text(&b, "\n");
        if (i ? blank || line.len : first) {
            if (spaces.type == V_STR) buf_append(&b, spaces.s.data, spaces.s.len);
            for (int64_t k = 0; k < width; k++) buf_text(&b, " ");
        }
        buf_append(&b, line.data, line.len);
    }
    return text_end(in, &b);
}

/* ---- numbers ---- */

static bool parse_float(Str s, double *out)
{
    char text[64], *end;
    if (s.len == 0 || s.len >= sizeof text) return false;
    memcpy(text, s.data, s.len);
    text[s.len] = '\0';
    *out = strtod(text, &end);
    return end != text && *end == '\0' && !strpbrk(text, "xXpP");
}

static Value to_int(Interp *in, double f, Value otherwise)
{
    return isfinite(f) && fabs(f) < 9.2e18 ? value_int((int64_t)f) : otherwise;
}

static Value filter_int(Interp *in, Value self, const Value *a)
{
    Value otherwise = a[0].type == V_MISSING ? value_int(0) : a[0];
    char *end;
    double f;
    if (value_is_number(self))
        return self.type == V_FLOAT ? to_int(in, self.f, otherwise) : value_int(self.type == V_BOOL ? self.b : self.i);
    if (self.type == V_UNDEFINED) return value_use_undefined(in, self);
    if (self.type != V_STR) return otherwise;
    Str s = text_strip(in, self.s, (Value){ .type = V_MISSING }, true, true).s;
    char text[24];
    if (s.len > 0 && s.len < 19) { /* fits 64 bits whatever the digits */
        memcpy(text, s.data, s.len);
        text[s.len] = '\0';
        long long i = strtoll(text, &end, 10);
        if (*end == '\0') return value_int(i);
    }
    return parse_float(s, &f) ? to_int(in, f, otherwise) : otherwise;
}

static Value filter_float(Interp *in, Value self, const Value *a)
{
    double f;
    if (self.type == V_UNDEFINED) return value_use_undefined(in, self);
    if (value_is_number(self)) return value_float(value_number(self));
    if (self.type == V_STR && parse_float(text_strip(in, self.s, (Value){ .type = V_MISSING }, true, true).s, &f))
        return value_float(f);
    return a[0].type == V_MISSING ? value_float(0) : a[0];
}

static Value filter_abs(Interp *in, Value self, const Value *a)
{
    if (!value_is_number(self)) return interp_fail(in, "bad operand type for abs(): '%s'", value_type_name(self));
    if (self.type == V_FLOAT) return value_float(fabs(self.f));
    int64_t i = self.type == V_BOOL ? self.b : self.i;
    if (i == INT64_MIN) return interp_fail(in, "an integer is too large");
    return value_int(i < 0 ? -i : i);
}

/* ---- any value ---- */

static Value filter_length(Interp *in, Value self, const Value *a) { return value_int(value_length(in, self)); }

/* default(default_value='', boolean=false) */
static Value filter_default(Interp *in, Value self, const Value *a)
{
    bool use = self.type == V_UNDEFINED || (value_truth(a[1]) && !value_truth(self));
    return !use ? self : a[0].type == V_MISSING ? value_str(STR("")) : a[0];
}

/* ---- sequences ---- */

static Value filter_items(Interp *in, Value self, const Value *a)
{
    if (self.type == V_UNDEFINED) return value_list(in, V_GENERATOR, NULL, 0);
    if (self.type != V_DICT) return interp_fail(in, "can only get item pairs from a mapping");
    return dict_pairs(in, self.dict, V_GENERATOR);
}

static Value filter_list(Interp *in, Value self, const Value *a)
{
    const List *items = value_items(in, self);
    return value_list(in, V_LIST, items->items, items->n);
}

static Value filter_first(Interp *in, Value self, const Value *a)
{
    const List *items = value_items(in, self);
    return items->n ? items->items[0]
                    : value_undefined(UNDEFINED_SAID, V_NONE, STR("no first item, sequence was empty"));
}

static Value filter_last(Interp *in, Value self, const Value *a)
{
    const List *items = value_items(in, self);
    return items->n ? items->items[items->n - 1]
                    : value_undefined(UNDEFINED_SAID, V_NONE, STR("no last item, sequence was empty"));
}

static Value filter_reverse(Interp *in, Value self, const Value *a)
{
    const List *items = value_items(in, self);
    ListBuilder l = { 0 };
    for (int64_t i = items->n; i-- > 0 && interp_charge_items(in, 16);) list_push(in, &l, items->items[i]);
    if (self.type != V_STR) return value_list(in, V_GENERATOR, l.items, l.n);
    Buf b;
    text_begin(&b);
    for (int64_t i = 0; i < l.n; i++) value_write(in, &b, l.items[i]);
    return text_end(in, &b);
}

/* item.a.b, item['a']['b'] and item[0] by "a.b", "0": as map(attribute=...) has it. */
static Value attribute_path(Interp *in, Value item, Value path)
{
    if (path.type == V_INT) return value_item(in, item, path);
    Str rest = value_text(in, path);
    while (!in->failed) {
        const char *dot = rest.len ? memchr(rest.data, '.', rest.len) : NULL;
        Str name = { rest.data, dot ? (size_t)(dot - rest.data) : rest.len };
        bool is_number = text_is(in, name, TEXT_DIGITS) && name.len < 10;
        Value index = value_str(name);
        if (is_number) index = filter_int(in, index, &(Value){ .type = V_MISSING });
        item = value_item(in, item, index);
        if (!dot) break;
        rest = (Str){ dot + 1, rest.len - name.len - 1 };
    }
    return item;
}

/* join(d='', attribute=none) */
static Value filter_join(Interp *in, Value self, const Value *a)
{
    const List *items = value_items(in, self);
    Str between = a[0].type == V_MISSING ? STR("") : value_text(in, a[0]);
    Buf b;
    text_begin(&b);
    for (int64_t i = 0; i < items->n && !in->failed && !b.failed && interp_charge(in, 1); i++) {
        if (i) buf_append(&b, between.data, between.len);
        value_write(in, &b, is_given(a[1]) ? attribute_path(in, items->items[i], a[1]) : items->items[i]);
    }
    return text_end(in, &b);
}

/* ---- map, select, reject ---- */

static CallArguments rest_of(const CallArguments *a, int n)
{
    return (CallArguments){ a->n - n, a->n_named, a->values + n, a->names };
}

static Value map_by_attribute(Interp *in, const List *items, const CallArguments *a)
{
    ListBuilder l = { 0 };
    Value path = a->values[0], otherwise = { .type = V_MISSING };
    for (int i = 0; i < a->n_named; i++) {
        if (str_equal(a->names[i], STR("default"))) otherwise = a->values[a->n + i];
        else if (str_equal(a->names[i], STR("attribute"))) path = a->values[a->n + i];
        else return interp_fail(in, "map() takes attribute and default");
    }
    for (int64_t i = 0; i < items->n && interp_charge(in, 1); i++) {
        Value v = attribute_path(in, items->items[i], path);
        list_push(in, &l, v.type == V_UNDEFINED && otherwise.type != V_MISSING ? otherwise : v);
    }
    return value_list(in, V_GENERATOR, l.items, l.n);
}

static const Builtin *find_named(Interp *in, const Builtin *(*find)(Str), Value name, const char *kind)
{
    const Builtin *b = name.type == V_STR ? find(name.s) : NULL;
    int len = name.type == V_STR && name.s.len < 60 ? (int)name.s.len : 0;
    if (!b) interp_fail(in, "there is no %s named '%.*s'", kind, len, name.type == V_STR ? name.s.data : "");
    return b;
}

/* map('filter', ...) and map(attribute='name', default=...) */
static Value filter_map(Interp *in, Value self, const CallArguments *a)
{
    if (!value_truth(self)) return value_list(in, V_GENERATOR, NULL, 0);
    const List *items = value_items(in, self);
    if (a->n == 0 && a->n_named == 0) return interp_fail(in, "map() needs the name of a filter, or attribute=");
    if (a->n == 0) return map_by_attribute(in, items, a);
    const Builtin *filter = find_named(in, filter_find, a->values[0], "filter");
    CallArguments rest = rest_of(a, 1);
    ListBuilder l = { 0 };
    for (int64_t i = 0; filter && i < items->n && interp_charge(in, 1); i++) {
        list_push(in, &l, call_builtin(in, filter, "filter", items->items[i], &rest));
    }
    return value_list(in, V_GENERATOR, l.items, l.n);
}

/* Keeps the items whose test gives `keep`. The test's name is argument n_before, its arguments follow; none = truth. */
static Value select_items(Interp *in, Value self, const CallArguments *a, int n_before, bool keep)
{
    if (!value_truth(self)) return value_list(in, V_GENERATOR, NULL, 0);
    if (a->n < n_before) return interp_fail(in, "missing parameter for attribute name");
    const List *items = value_items(in, self);
    const Builtin *test = a->n > n_before ? find_named(in, test_find, a->values[n_before], "test") : NULL;
    CallArguments rest = rest_of(a, a->n > n_before ? n_before + 1 : n_before);
    ListBuilder l = { 0 };
    for (int64_t i = 0; i < items->n && interp_charge(in, 1); i++) {
        Value v = n_before ? attribute_path(in, items->items[i], a->values[0]) : items->items[i];
        Value holds = test ? call_builtin(in, test, "test", v, &rest) : v;
        if (value_truth(holds) == keep) list_push(in, &l, items->items[i]);
    }
    return value_list(in, V_GENERATOR, l.items, l.n);
}

static Value filter_select(Interp *in, Value self, const CallArguments *a)
{
    return select_items(in, self, a, 0, true);
}
static Value filter_reject(Interp *in, Value self, const CallArguments *a)
{
    return select_items(in, self, a, 0, false);
}
static Value filter_selectattr(Interp *in, Value self, const CallArguments *a)
{
    return select_items(in, self, a, 1, true);
}
static Value filter_rejectattr(Interp *in, Value self, const CallArguments *a)
{
    return select_items(in, self, a, 1, false);
}

const Builtin *filter_find(Str name)
{
    static const Builtin filters[] = {
        { "tojson", filter_tojson, NULL, 0, { "ensure_ascii", "indent", "separators", "sort_keys" } },
        { "trim", filter_trim, NULL, 0, { "chars" } },
        { "length", filter_length, NULL, 0, { NULL } },
        { "count", filter_length, NULL, 0, { NULL } },
        { "string", filter_string, NULL, 0, { NULL } },
        { "safe", filter_string, NULL, 0, { NULL } }, /* nothing is escaped here, so there is nothing to mark */
        { "default", filter_default, NULL, 0, { "default_value", "boolean" } },
        { "d", filter_default, NULL, 0, { "default_value", "boolean" } },
        { "items", filter_items, NULL, 0, { NULL } },
        { "join", filter_join, NULL, 0, { "d", "attribute" } },
        { "list", filter_list, NULL, 0, { NULL } },
        { "first", filter_first, NULL, 0, { NULL } },
        { "last", filter_last, NULL, 0, { NULL } },
        { "reverse", filter_reverse, NULL, 0, { NULL } },
        { "map", NULL, filter_map, 0, { NULL } },
        { "select", NULL, filter_select, 0, { NULL } },
        { "reject", NULL, filter_reject, 0, { NULL } },
        { "selectattr", NULL, filter_selectattr, 0, { NULL } },
        { "rejectattr", NULL, filter_rejectattr, 0, { NULL } },
        { "lower", filter_lower, NULL, 0, { NULL } },
        { "upper", filter_upper, NULL, 0, { NULL } },
        { "capitalize", filter_capitalize, NULL, 0, { NULL } },
        { "replace", filter_replace, NULL, 2, { "old", "new", "count" } },
        { "indent", filter_indent, NULL, 0, { "width", "first", "blank" } },
        { "int", filter_int, NULL, 0, { "default" } },
        { "float", filter_float, NULL, 0, { "default" } },
        { "abs", filter_abs, NULL, 0, { NULL } },
    };
    return builtin_find(filters, COUNT(filters), name);
}
