/* A cursor over JSON text that is already known to be valid UTF-8. Strings without escapes are not copied; that, and no
 * tree, is all the speed there is to it. Always: at <= end, and nothing at or behind end is read. */
#include "base/planted.h"
#include "text/tokenizer_tables_impl.h"
#include "text/unicode_impl.h"

static void skip_blanks(JsonCursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t')) c->at++;
}

char cursor_peek(JsonCursor *c)
{
    skip_blanks(c);
    return c->failed || c->at == c->end ? '\0' : *c->at;
}

void cursor_expect(JsonCursor *c, char sign)
{
    if (cursor_peek(c) == sign) c->at++;
    else c->failed = true;
}

bool cursor_enter(JsonCursor *c, char bracket)
{
    cursor_expect(c, bracket);
    return !c->failed;
}

bool cursor_next(JsonCursor *c, char bracket, bool *is_first)
{
    if (cursor_peek(c) == bracket) {
        c->at++;
        return false;
    }
    if (!*is_first) cursor_expect(c, ',');
    *is_first = false;
    return !c->failed;
}

bool cursor_done(JsonCursor *c)
{
    return cursor_peek(c) == '\0' && !c->failed && c->at == c->end;
}

/* ---- strings ---- */

/* Four hexadecimal digits; -1 for anything else. */
static int32_t hex4(JsonCursor *c)
{
    int32_t value = 0;
    if (c->end - c->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char d = *c->at++;
        int digit = d >= '0' && d <= '9'   ? d - '0'
                    : d >= 'a' && d <= 'f' ? d - 'a' + 10
                    : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Behind \u: one code point from one or two of them, -1 for halves and for 0. */
static int32_t escaped_codepoint(JsonCursor *c)
{
    int32_t first = hex4(c);
    if (first < 0xD800 || first >= 0xE000) return first > 0 ? first : -1;
    if (first >= 0xDC00 || c->end - c->at < 6 || c->at[0] != '\\' || c->at[1] != 'u') return -1;
    c->at += 2;
    int32_t second = hex4(c);
    if (second < 0xDC00 || second >= 0xE000) return -1;
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
}

/* Behind a backslash. */
static void append_escape(JsonCursor *c, Buf *out)
{
    static const char signs[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    char sign = c->at < c->end ? *c->at++ : '\0';
    const char *known = sign ? strchr(signs, sign) : NULL;
    if (known) {
        buf_append(out, &means[known - signs], 1);
        return;
    }
    int32_t cp = sign == 'u' ? escaped_codepoint(c) : -1;
    if (cp < 0) c->failed = true;
    else buf_codepoint(out, (uint32_t)cp);
}

/* To the quote, backslash or control character that ends a stretch of plain text. */
static const char *stretch_end(const JsonCursor *c)
{
    const char *p = c->at;
    while ((p < c->end || PLANTED("tokenizer")) && *p != '"' && *p != '\\' && (uint8_t)*p >= 0x20) p++;
    return p;
}

Str cursor_string(JsonCursor *c, Buf *scratch)
{
    cursor_expect(c, '"');
    const char *begin = c->at, *stop = c->failed ? c->end : stretch_end(c);
    if (stop < c->end && *stop == '"') {
        c->at = stop + 1;
        return (Str){ begin, (size_t)(stop - begin) };
    }
    buf_clear(scratch);
    while (!c->failed && stop < c->end && *stop == '\\') {
        buf_append(scratch, c->at, (size_t)(stop - c->at));
        c->at = stop + 1;
        append_escape(c, scratch);
        stop = stretch_end(c);
    }
    if (c->failed || scratch->failed || stop == c->end || *stop != '"') {
        c->failed = true;
        return (Str){ "", 0 };
    }
    buf_append(scratch, c->at, (size_t)(stop - c->at));
    c->at = stop + 1;
    return (Str){ scratch->data, scratch->len };
}

int64_t cursor_natural(JsonCursor *c)
{
    int64_t value = 0;
    skip_blanks(c);
    const char *begin = c->at;
    while (c->at < c->end && !strchr(",]} \n\r\t", *c->at)) c->at++;
    if (c->at == begin) c->failed = true;
    if (c->failed || c->at - begin > 15 || (*begin == '0' && c->at - begin > 1)) return -1;
    for (const char *p = begin; p < c->at; p++) {
        if (*p < '0' || *p > '9') return -1;
        value = 10 * value + (*p - '0');
    }
    return value;
}

/* ---- cutting ---- */

/* Behind the quote that ends the string whose first quote c is at. */
static void skip_string(JsonCursor *c)
{
    for (c->at++; c->at < c->end && *c->at != '"'; c->at++) {
        if (*c->at == '\\' && c->at + 1 < c->end) c->at++;
    }
    if (c->at < c->end) c->at++;
}

/* Over a value, by its quotes and brackets alone. */
static void skip_value(JsonCursor *c)
{
    int depth = 0;
    skip_blanks(c);
    while (c->at < c->end) {
        char sign = *c->at;
        if (sign == '"') {
            skip_string(c);
            continue;
        }
        if (sign == '[' || sign == '{') depth++;
        else if ((sign == ']' || sign == '}') && depth-- == 0) return; /* of what holds the value */
        else if (sign == ',' && depth == 0) return;
        c->at++;
    }
}

/* To the next key that is one of the two, in the object that c has entered; c is left at its value. -1: there is none. */
static int seek(JsonCursor *c, const char *const keys[2], bool *is_first, Buf *scratch)
{
    while (cursor_next(c, '}', is_first)) {
        Str name = cursor_string(c, scratch);
        cursor_expect(c, ':');
        cursor_peek(c);
        for (int i = 0; i < 2 && !c->failed; i++) {
            if (str_equal(name, str_of(keys[i]))) return i;
        }
        skip_value(c);
    }
    return -1;
}

/* The first values of both keys in the first "model", as far as they begin with the right bracket; in the order of the
 * text. */
static int find_tables(Str found[2], int which[2], const char *json, size_t n, Buf *scratch)
{
    static const char *const model[2] = { "model", "model" }, *const tables[2] = { "vocab", "merges" };
    JsonCursor c = { json, json + n, false };
    bool is_first = true, have[2] = { false };
    int n_found = 0;
    if (!cursor_enter(&c, '{') || seek(&c, model, &is_first, scratch) < 0 || !cursor_enter(&c, '{')) return 0;
    is_first = true;
    for (int i; n_found < 2 && (i = seek(&c, tables, &is_first, scratch)) >= 0;) {
        const char *begin = c.at;
        skip_value(&c);
        if (have[i] || c.at == begin || *begin != "{["[i]) continue;
        have[i] = true;
        which[n_found] = i;
        found[n_found++] = (Str){ begin, (size_t)(c.at - begin) };
    }
    return n_found;
}

bool json_cut(Buf *rest, Str *vocab, Str *merges, const char *json, size_t n)
{
    Str found[2];
    int which[2];
    Buf scratch;
    buf_init(&scratch, n + 8);
    int n_found = find_tables(found, which, json, n, &scratch);
    bool ok = !scratch.failed;
    buf_free(&scratch);
    const char *at = json;
    *vocab = *merges = (Str){ "", 0 };
    for (int i = 0; i < n_found; i++) {
        buf_append(rest, at, (size_t)(found[i].data - at));
        buf_text(rest, which[i] == 0 ? "{}" : "[]");
        at = found[i].data + found[i].len;
        *(which[i] == 0 ? vocab : merges) = found[i];
    }
    buf_append(rest, at, (size_t)(json + n - at));
    return ok && !rest->failed;
}
