/* Methods of strings, dicts and loops. Lists have none that would not change them. */
#include "text/jinja_eval_impl.h"
#include "text/jinja_text_impl.h"

/* ---- strings ---- */

typedef bool (*EndTest)(Str s, Str part);
static bool ends_with(Str s, Str part)
{
    return s.len >= part.len && str_equal((Str){ s.data + s.len - part.len, part.len }, part);
}

/* One string or a tuple of them. */
static Value test_end(Interp *in, Value self, Value parts, EndTest test, const char *name)
{
    const List one = { &parts, 1 }, *list = parts.type == V_TUPLE ? parts.list : &one;
    for (int64_t i = 0; i < list->n; i++) {
        if (list->items[i].type != V_STR) {
            return interp_fail(in, "%s first arg must be str or a tuple of str, not %s", name,
                               value_type_name(list->items[i]));
        }
        if (test(self.s, list->items[i].s)) return value_bool(true);
    }
    return value_bool(false);
}

static Value str_startswith(Interp *in, Value self, const Value *a)
{
    return test_end(in, self, a[0], str_starts, "startswith");
}
static Value str_endswith(Interp *in, Value self, const Value *a)
{
    return test_end(in, self, a[0], ends_with, "endswith");
}

static Value str_strip(Interp *in, Value self, const Value *a) { return text_strip(in, self.s, a[0], true, true); }
static Value str_lstrip(Interp *in, Value self, const Value *a) { return text_strip(in, self.s, a[0], true, false); }
static Value str_rstrip(Interp *in, Value self, const Value *a) { return text_strip(in, self.s, a[0], false, true); }
static Value str_lower(Interp *in, Value self, const Value *a) { return text_case(in, self.s, CASE_LOWER); }
static Value str_upper(Interp *in, Value self, const Value *a) { return text_case(in, self.s, CASE_UPPER); }
static Value str_capitalize(Interp *in, Value self, const Value *a) { return text_case(in, self.s, CASE_CAPITALIZE); }
static Value str_title(Interp *in, Value self, const Value *a) { return text_case(in, self.s, CASE_TITLE); }

static Value str_replace(Interp *in, Value self, const Value *a)
{
    if (a[0].type != V_STR || a[1].type != V_STR) return interp_fail(in, "replace() argument must be str");
    return text_replace(in, self.s, a[0].s, a[1].s, a[2].type == V_INT ? a[2].i : -1);
}

static Value split(Interp *in, Value self, const Value *a, bool from_right)
{
    int64_t max = a[1].type == V_INT && a[1].i >= 0 ? a[1].i : INT64_MAX;
    if (a[0].type == V_MISSING || a[0].type == V_NONE) return text_split_space(in, self.s, max, from_right);
    if (a[0].type != V_STR) return interp_fail(in, "must be str or None, not %s", value_type_name(a[0]));
    if (a[0].s.len == 0) return interp_fail(in, "empty separator");
    return text_split(in, self.s, a[0].s, max, from_right);
}

static Value str_split(Interp *in, Value self, const Value *a) { return split(in, self, a, false); }
static Value str_rsplit(Interp *in, Value self, const Value *a) { return split(in, self, a, true); }

static Value str_splitlines(Interp *in, Value self, const Value *a)
{
    return text_split_lines(in, self.s, a[0].type != V_MISSING && value_truth(a[0]));
}

static Value str_join(Interp *in, Value self, const Value *a)
{
    const List *items = value_items(in, a[0]);
    Buf b;
    text_begin(&b);
    for (int64_t i = 0; i < items->n && !in->failed && !b.failed && interp_charge(in, 1); i++) {
        if (items->items[i].type != V_STR) {
            interp_fail(in, "sequence item %lld: expected str instance, %s found", (long long)i,
                        value_type_name(items->items[i]));
        }
        if (i) buf_append(&b, self.s.data, self.s.len);
        value_write(in, &b, items->items[i]);
    }
    return text_end(in, &b);
}

static Value find(Interp *in, Value self, Value part, bool last)
{
    if (part.type != V_STR) return interp_fail(in, "must be str, not %s", value_type_name(part));
    const char *hit = text_find(in, self.s, part.s, last);
    return value_int(hit ? (int64_t)utf8_count(self.s.data, (size_t)(hit - self.s.data)) : -1);
}

static Value str_find(Interp *in, Value self, const Value *a) { return find(in, self, a[0], false); }
static Value str_rfind(Interp *in, Value self, const Value *a) { return find(in, self, a[0], true); }

static Value str_count(Interp *in, Value self, const Value *a)
{
    if (a[0].type != V_STR) return interp_fail(in, "must be str, not %s", value_type_name(a[0]));
    if (a[0].s.len == 0) return value_int(value_length(in, self) + 1);
    int64_t n = 0;
    const char *p = self.s.data, *end = p + self.s.len, *hit;
    interp_charge_bytes(in, self.s.len);
    for (; p < end && (hit = memmem(p, (size_t)(end - p), a[0].s.data, a[0].s.len)); n++) p = hit + a[0].s.len;
    return value_int(n);
}

static Value str_removeprefix(Interp *in, Value self, const Value *a)
{
    if (a[0].type != V_STR)
        return interp_fail(in, "removeprefix() argument must be str, not %s", value_type_name(a[0]));
    if (!str_starts(self.s, a[0].s)) return self;
    return value_str((Str){ self.s.data + a[0].s.len, self.s.len - a[0].s.len });
}

static Value str_removesuffix(Interp *in, Value self, const Value *a)
{
    if (a[0].type != V_STR)
        return interp_fail(in, "removesuffix() argument must be str, not %s", value_type_name(a[0]));
    return ends_with(self.s, a[0].s) ? value_str((Str){ self.s.data, self.s.len - a[0].s.len }) : self;
}

static Value str_isdigit(Interp *in, Value self, const Value *a)
{
    return value_bool(text_is(in, self.s, TEXT_DIGITS));
}
static Value str_isalpha(Interp *in, Value self, const Value *a)
{
    return value_bool(text_is(in, self.s, TEXT_LETTERS));
}
static Value str_isspace(Interp *in, Value self, const Value *a) { return value_bool(text_is(in, self.s, TEXT_SPACE)); }
static Value str_isupper(Interp *in, Value self, const Value *a) { return value_bool(text_is(in, self.s, TEXT_UPPER)); }
static Value str_islower(Interp *in, Value self, const Value *a) { return value_bool(text_is(in, self.s, TEXT_LOWER)); }

/* The argument that a field of format() means: "" the next, "2" by place, "name" by name. */
static Value format_argument(Interp *in, Str field, const CallArguments *a, int *next)
{
    int64_t at = 0;
    if (field.len == 0) {
        at = (*next)++;
    } else if (text_is(in, field, TEXT_DIGITS) && field.len < 6) {
        for (size_t i = 0; i < field.len; i++) at = 10 * at + (field.data[i] - '0');
    } else {
        for (int i = 0; i < a->n_named; i++) {
            if (str_equal(a->names[i], field)) return a->values[a->n + i];
        }
        return interp_fail(in, "format() has no argument '%.*s'", (int)(field.len < 60 ? field.len : 60), field.data);
    }
    if (at >= a->n) return interp_fail(in, "replacement index %lld out of range", (long long)at);
    return a->values[at];
}

/* Fields are {}, {0} and {name}; no format specifications, conversions or attributes. */
static Value str_format(Interp *in, Value self, const CallArguments *a)
{
    Buf b;
    int next = 0;
    text_begin(&b);
    const char *p = self.s.data, *end = p + self.s.len;
    while (p < end && !in->failed && !b.failed && interp_charge(in, 1)) {
        const char *stop = p;
        while (stop < end && *stop != '{' && *stop != '}') stop++;
        buf_append(&b, p, (size_t)(stop - p));
        interp_charge_bytes(in, (size_t)(stop - p));
        p = stop + 1;
        if (stop == end) break;
        if (p < end && *p == *stop) { /* doubled: itself */
            buf_append(&b, p++, 1);
            continue;
        }
        const char *close = *stop == '{' ? memchr(p, '}', (size_t)(end - p)) : NULL;
        Str field = { p, close ? (size_t)(close - p) : 0 };
        if (!close) interp_fail(in, "single '%c' encountered in format string", *stop);
        else if (field.len && strcspn(value_copy(in, p, field.len).s.data, ":!.[{") < field.len)
            interp_fail(in, "format() with more than a name in its braces is not supported");
        else value_write(in, &b, format_argument(in, field, a, &next));
        p = close ? close + 1 : end;
    }
    return text_end(in, &b);
}

static const Builtin string_methods[] = {
    { "format", NULL, str_format, 0, { NULL } },
    { "startswith", str_startswith, NULL, 1, { "prefix" } },
    { "endswith", str_endswith, NULL, 1, { "suffix" } },
    { "strip", str_strip, NULL, 0, { "chars" } },
    { "lstrip", str_lstrip, NULL, 0, { "chars" } },
    { "rstrip", str_rstrip, NULL, 0, { "chars" } },
    { "split", str_split, NULL, 0, { "sep", "maxsplit" } },
    { "rsplit", str_rsplit, NULL, 0, { "sep", "maxsplit" } },
    { "splitlines", str_splitlines, NULL, 0, { "keepends" } },
    { "replace", str_replace, NULL, 2, { "old", "new", "count" } },
    { "join", str_join, NULL, 1, { "iterable" } },
    { "lower", str_lower, NULL, 0, { NULL } },
    { "upper", str_upper, NULL, 0, { NULL } },
    { "capitalize", str_capitalize, NULL, 0, { NULL } },
    { "title", str_title, NULL, 0, { NULL } },
    { "find", str_find, NULL, 1, { "sub" } },
    { "rfind", str_rfind, NULL, 1, { "sub" } },
    { "count", str_count, NULL, 1, { "sub" } },
    { "removeprefix", str_removeprefix, NULL, 1, { "prefix" } },
    { "removesuffix", str_removesuffix, NULL, 1, { "suffix" } },
    { "isdigit", str_isdigit, NULL, 0, { NULL } },
    { "isalpha", str_isalpha, NULL, 0, { NULL } },
    { "isspace", str_isspace, NULL, 0, { NULL } },
    { "isupper", str_isupper, NULL, 0, { NULL } },
    { "islower", str_islower, NULL, 0, { NULL } },
};

/* ---- dicts ---- */

static Value dict_keys(Interp *in, Value self, const Value *a)
{
    return value_list(in, V_LIST, self.dict->keys, self.dict->n);
}
static Value dict_values(Interp *in, Value self, const Value *a)
{
    return value_list(in, V_LIST, self.dict->values, self.dict->n);
}
static Value dict_items(Interp *in, Value self, const Value *a) { return dict_pairs(in, self.dict, V_LIST); }

static Value dict_get(Interp *in, Value self, const Value *a)
{
    const Value *v = dict_find(in, self.dict, a[0]);
    return v ? *v : a[1].type == V_MISSING ? value_none() : a[1];
}

Value dict_pairs(Interp *in, const Dict *d, ValueType type)
{
    Value *pairs = interp_array(in, Value, d->n), *both = interp_array(in, Value, 2 * d->n);
    for (int64_t i = 0; i < d->n && interp_charge(in, 1); i++) {
        both[2 * i] = d->keys[i];
        both[2 * i + 1] = d->values[i];
        pairs[i] = value_list(in, V_TUPLE, &both[2 * i], 2);
    }
    return value_list(in, type, pairs, d->n);
}

static const Builtin dict_methods[] = {
    { "items", dict_items, NULL, 0, { NULL } },
    { "keys", dict_keys, NULL, 0, { NULL } },
    { "values", dict_values, NULL, 0, { NULL } },
    { "get", dict_get, NULL, 1, { "key", "default" } },
};

/* ---- lists and loops ---- */

static Value list_index(Interp *in, Value self, const Value *a)
{
    for (int64_t i = 0; i < self.list->n && interp_charge(in, 1); i++) {
        if (value_equal(in, self.list->items[i], a[0])) return value_int(i);
    }
    return interp_fail(in, "a value is not in the list");
}

static Value list_count(Interp *in, Value self, const Value *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < self.list->n && interp_charge(in, 1); i++) n += value_equal(in, self.list->items[i], a[0]);
    return value_int(n);
}

static const Builtin list_methods[] = {
    { "index", list_index, NULL, 1, { "value" } },
    { "count", list_count, NULL, 1, { "value" } },
};

static Value loop_cycle(Interp *in, Value self, const CallArguments *a)
{
    if (a->n == 0) return interp_fail(in, "no items for cycling given");
    return a->values[self.loop->at % a->n];
}

static const Builtin loop_methods[] = { { "cycle", NULL, loop_cycle, 0, { NULL } } };

const Builtin *method_find(Value object, Str name)
{
    switch ((ValueType)object.type) {
    case V_STR: return builtin_find(string_methods, COUNT(string_methods), name);
    case V_DICT: return builtin_find(dict_methods, COUNT(dict_methods), name);
    case V_LIST:
    case V_TUPLE: return builtin_find(list_methods, COUNT(list_methods), name);
    case V_LOOP: return builtin_find(loop_methods, COUNT(loop_methods), name);
    default: return NULL;
    }
}

bool method_is_unsafe(Value object, Str name)
{
    static const char *const of_list[] = { "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort" };
    static const char *const of_dict[] = { "clear", "pop", "popitem", "setdefault", "update" };
    const char *const *names = object.type == V_LIST ? of_list : of_dict;
    int n = object.type == V_LIST ? COUNT(of_list) : object.type == V_DICT ? COUNT(of_dict) : 0;
    for (int i = 0; i < n; i++) {
        if (str_equal(str_of(names[i]), name)) return true;
    }
    return false;
}
