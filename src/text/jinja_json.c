/* JSON in and out of the interpreter: the conversation becomes values, tojson writes values as json.dumps does. */
#include "text/jinja_eval_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- in ---- */

static Value list_from_json(Interp *in, const json_t *json)
{
    size_t n = json_array_size(json);
    Value *items = interp_array(in, Value, n + 1);
    for (size_t i = 0; i < n && !in->failed; i++) items[i] = value_from_json(in, json_array_get(json, i));
    return value_list(in, V_LIST, items, (int64_t)n);
}

static Value dict_from_json(Interp *in, const json_t *json)
{
    const char *key;
    json_t *value;
    size_t n = json_object_size(json);
    Dict *d = interp_array(in, Dict, 1);
    Value *keys = interp_array(in, Value, n + 1), *values = interp_array(in, Value, n + 1);
    if (in->failed) return value_none();
    *d = (Dict){ keys, values, 0 };
    json_object_foreach((json_t *)json, key, value) { /* the macro wants it mutable and leaves it alone */
        keys[d->n] = value_str(str_of(key));
        values[d->n++] = value_from_json(in, value);
    }
    return (Value){ .type = V_DICT, .dict = d };
}

/* Strings are borrowed from json, which outlives the render. */
Value value_from_json(Interp *in, const json_t *json)
{
    if (!json || in->failed) return value_none();
    switch (json_typeof(json)) {
    case JSON_STRING: return value_str((Str){ json_string_value(json), json_string_length(json) });
    case JSON_INTEGER: return value_int(json_integer_value(json));
    case JSON_REAL: return value_float(json_real_value(json));
    case JSON_TRUE: return value_bool(true);
    case JSON_FALSE: return value_bool(false);
    case JSON_NULL: return value_none();
    case JSON_ARRAY:
    case JSON_OBJECT: break;
    }
    if (!interp_enter(in)) return value_none();
    Value v = json_is_array(json) ? list_from_json(in, json) : dict_from_json(in, json);
    interp_leave(in);
    return v;
}

/* ---- out ---- */

/* Digits of the shortest decimal that reads back equal, and its exponent: d.ddd * 10^exponent. */
static int shortest_digits(double f, char digits[20], int *exponent)
{
    char text[40];
    int precision = 0;
    do snprintf(text, sizeof text, "%.*e", precision, f);
    while (strtod(text, NULL) != f && ++precision < 17);
    int n = 0;
    for (const char *p = text; *p && *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    }
    *exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    return n;
}

void write_float(Buf *out, double f)
{
    char digits[20];
    int exponent;
    if (!isfinite(f)) {
        buf_text(out, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    if (signbit(f)) buf_text(out, "-");
    int n = shortest_digits(fabs(f), digits, &exponent);
    if (exponent < -4 || exponent >= 16) { /* 1.5e-07 */
        buf_append(out, digits, 1);
        if (n > 1) buf_printf(out, ".%.*s", n - 1, digits + 1);
        buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) buf_text(out, "0.");
    for (int i = exponent + 1; i < 0; i++) buf_text(out, "0");
    for (int i = 0; i < n || i <= exponent; i++) {
        buf_append(out, i < n ? &digits[i] : "0", 1);
        if (i == exponent) buf_text(out, i + 1 < n ? "." : ".0");
    }
}

typedef struct JsonStyle {
    Str  indent, item_separator, key_separator;
    bool has_indent, sort_keys, ascii;
} JsonStyle;

static void write_escape(Buf *out, uint32_t cp)
{
    if (cp >= 0x10000) {
        cp -= 0x10000;
        buf_printf(out, "\\u%04x\\u%04x", 0xD800 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
    } else {
        buf_printf(out, "\\u%04x", cp);
    }
}

static void write_json_char(Buf *out, const char *begin, const char *end, uint32_t cp, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *known = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (known) buf_printf(out, "\\%c", to[known - from]);
    else if (cp < ' ' || (ascii && cp > 0x7E)) write_escape(out, cp);
    else buf_append(out, begin, (size_t)(end - begin));
}

static void write_json_string(Interp *in, Buf *out, Str s, bool ascii)
{
    const char *p = s.data, *end = s.data + s.len;
    if (!interp_charge(in, (int64_t)(s.len / 32))) return;
    buf_text(out, "\"");
    while (p < end) {
        const char *begin = p;
        uint32_t cp = utf8_read(&p);
        write_json_char(out, begin, p, cp, ascii);
    }
    buf_text(out, "\"");
}

static void write_json(Interp *in, Buf *out, Value v, const JsonStyle *style, int depth);

static void write_line_break(Buf *out, const JsonStyle *style, int depth)
{
    if (!style->has_indent) return;
    buf_text(out, "\n");
    for (int i = 0; i < depth; i++) buf_append(out, style->indent.data, style->indent.len);
}

static void write_separator(Buf *out, const JsonStyle *style, int64_t i, int depth)
{
    if (i) buf_append(out, style->item_separator.data, style->item_separator.len);
    write_line_break(out, style, depth);
}

static void write_json_list(Interp *in, Buf *out, const List *list, const JsonStyle *style, int depth)
{
    buf_text(out, "[");
    for (int64_t i = 0; i < list->n && !in->failed && !out->failed; i++) {
        write_separator(out, style, i, depth + 1);
        write_json(in, out, list->items[i], style, depth + 1);
    }
    if (list->n) write_line_break(out, style, depth);
    buf_text(out, "]");
}

/* A key that is no string is written as its JSON inside quotes, as Python does. */
static void write_json_key(Interp *in, Buf *out, Value key, const JsonStyle *style)
{
    if (key.type == V_STR) {
        write_json_string(in, out, key.s, style->ascii);
    } else if (key.type == V_NONE || value_is_number(key)) {
        buf_text(out, "\"");
        write_json(in, out, key, style, 0);
        buf_text(out, "\"");
    } else {
        interp_fail(in, "keys must be str, int, float, bool or None, not %s", value_type_name(key));
    }
}

static int compare_entries(const void *a, const void *b)
{
    Str x = ((const Value *)a)[0].s, y = ((const Value *)b)[0].s;
    size_t n = x.len < y.len ? x.len : y.len;
    int order = n ? memcmp(x.data, y.data, n) : 0;
    return order ? order : (x.len > y.len) - (x.len < y.len);
}

/* [key, value, key, value ...], sorted if asked. */
static Value *entries_of(Interp *in, const Dict *d, bool sorted)
{
    Value *entries = interp_array(in, Value, 2 * d->n + 1);
    if (!entries) return NULL;
    for (int64_t i = 0; i < d->n; i++) {
        entries[2 * i] = d->keys[i];
        entries[2 * i + 1] = d->values[i];
        if (sorted && d->keys[i].type != V_STR) interp_fail(in, "sort_keys needs keys that are strings");
    }
    if (sorted && !in->failed) qsort(entries, (size_t)d->n, 2 * sizeof *entries, compare_entries);
    return entries;
}

static void write_json_dict(Interp *in, Buf *out, const Dict *d, const JsonStyle *style, int depth)
{
    const Value *entries = entries_of(in, d, style->sort_keys);
    buf_text(out, "{");
    for (int64_t i = 0; i < d->n && !in->failed && !out->failed; i++) {
        write_separator(out, style, i, depth + 1);
        write_json_key(in, out, entries[2 * i], style);
        buf_append(out, style->key_separator.data, style->key_separator.len);
        write_json(in, out, entries[2 * i + 1], style, depth + 1);
    }
    if (d->n) write_line_break(out, style, depth);
    buf_text(out, "}");
}

static void write_json_float(Buf *out, double f)
{
    if (isfinite(f)) write_float(out, f);
    else buf_text(out, isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
}

static void write_json(Interp *in, Buf *out, Value v, const JsonStyle *style, int depth)
{
    if (!interp_charge(in, 1) || !interp_enter(in)) return;
    switch ((ValueType)v.type) {
    case V_NONE: buf_text(out, "null"); break;
    case V_BOOL: buf_text(out, v.b ? "true" : "false"); break;
    case V_INT: value_write(in, out, v); break;
    case V_FLOAT: write_json_float(out, v.f); break;
    case V_STR: write_json_string(in, out, v.s, style->ascii); break;
    case V_LIST:
    case V_TUPLE: write_json_list(in, out, v.list, style, depth); break;
    case V_DICT: write_json_dict(in, out, v.dict, style, depth); break;
    default: interp_fail(in, "Object of type %s is not JSON serializable", value_type_name(v));
    }
    interp_leave(in);
}

/* indent is a number of spaces or the text itself. */
static void read_indent(Interp *in, Value indent, JsonStyle *style)
{
    if (indent.type == V_MISSING || indent.type == V_NONE) return;
    style->has_indent = true;
    style->item_separator = STR(",");
    if (indent.type == V_STR) {
        style->indent = indent.s;
    } else if (indent.type == V_INT && indent.i <= 64) {
        static const char spaces[] = "                                                                ";
        style->indent = (Str){ spaces, indent.i > 0 ? (size_t)indent.i : 0 };
    } else {
        interp_fail(in, "tojson: indent must be a string or a number up to 64");
    }
}

static void read_separators(Interp *in, Value separators, JsonStyle *style)
{
    if (separators.type == V_MISSING || separators.type == V_NONE) return;
    const List *pair = value_items(in, separators);
    if (pair->n != 2 || pair->items[0].type != V_STR || pair->items[1].type != V_STR) {
        interp_fail(in, "tojson: separators must be two strings");
        return;
    }
    style->item_separator = pair->items[0].s;
    style->key_separator = pair->items[1].s;
}

/* tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false), as the environment of published templates
 * defines it. */
Value filter_tojson(Interp *in, Value self, const Value *arguments)
{
    JsonStyle style = { .item_separator = STR(", "), .key_separator = STR(": "), .ascii = value_truth(arguments[0]),
                        .sort_keys = value_truth(arguments[3]) };
    Buf out;
    read_indent(in, arguments[1], &style);
    read_separators(in, arguments[2], &style);
    text_begin(&out);
    if (!in->failed) write_json(in, &out, self, &style, 0);
    return text_end(in, &out);
}
