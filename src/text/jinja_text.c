/* str methods of Python on UTF-8. Case follows the simple mappings, one character to one, but for the German sharp
 * s. */
#include "text/jinja_text_impl.h"

#include <utf8proc.h>

/* ---- strip ---- */

static bool is_among(uint32_t cp, Value chars)
{
    if (chars.type != V_STR) return char_is_space(cp);
    for (const char *p = chars.s.data, *end = p + chars.s.len; p < end;) {
        if (utf8_read(&p) == cp) return true;
    }
    return false;
}

static const char *previous_char(const char *p)
{
    do p--;
    while (((uint8_t)*p & 0xC0) == 0x80);
    return p;
}

Value text_strip(Interp *in, Str s, Value chars, bool left, bool right)
{
    const char *begin = s.data, *end = s.data + s.len;
    if (chars.type != V_MISSING && chars.type != V_NONE && chars.type != V_STR) {
        return interp_fail(in, "strip arg must be None or str");
    }
    int64_t cost = chars.type == V_STR ? (int64_t)(chars.s.len / 64) : 0; /* of looking at one character */
    for (const char *next = begin; left && begin < end; begin = next) {
        if (!is_among(utf8_read(&next), chars) || !interp_charge(in, cost)) break;
    }
    while (right && end > begin) {
        const char *last = previous_char(end), *p = last;
        if (!is_among(utf8_read(&p), chars) || !interp_charge(in, cost)) break;
        end = last;
    }
    return value_str((Str){ begin, (size_t)(end - begin) });
}

/* ---- case and kinds ---- */

static bool is_cased(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

Value text_case(Interp *in, Str s, TextCase how)
{
    Buf b;
    bool inside = false; /* behind the first character, for a title of the word */
    const char *p = s.data, *end = s.data + s.len;
    text_begin(&b);
    interp_charge(in, (int64_t)(s.len / 64));
    while (p < end && !in->failed) {
        utf8proc_int32_t cp = (utf8proc_int32_t)utf8_read(&p);
        bool lower = how == CASE_LOWER || (how != CASE_UPPER && inside);
        bool title = how == CASE_TITLE || how == CASE_CAPITALIZE;
        if (cp == 0xDF && !lower) {
            buf_text(&b, title ? "Ss" : "SS");
            inside = true;
            continue;
        }
        buf_codepoint(&b, (uint32_t)(lower   ? utf8proc_tolower(cp)
                                     : title ? utf8proc_totitle(cp)
                                             : utf8proc_toupper(cp)));
        inside = how == CASE_TITLE ? is_cased((uint32_t)cp) : true;
    }
    return text_end(in, &b);
}

static bool char_is(uint32_t cp, TextKind kind)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    switch (kind) {
    case TEXT_SPACE: return char_is_space(cp);
    case TEXT_DIGITS:
        return c == UTF8PROC_CATEGORY_ND || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 ||
               (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089);
    case TEXT_LETTERS: return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    case TEXT_UPPER: return c != UTF8PROC_CATEGORY_LL && c != UTF8PROC_CATEGORY_LT;
    case TEXT_LOWER: return c != UTF8PROC_CATEGORY_LU && c != UTF8PROC_CATEGORY_LT;
    }
    return false;
}

/* isupper() and islower() forgive characters without case, but want one with. */
bool text_is(Interp *in, Str s, TextKind kind)
{
    const char *p = s.data, *end = s.data + s.len;
    bool need_cased = kind == TEXT_UPPER || kind == TEXT_LOWER, any = false;
    if (!interp_charge(in, (int64_t)(s.len / 64))) return false;
    while (p < end) {
        uint32_t cp = utf8_read(&p);
        if (!char_is(cp, kind)) return false;
        any = any || !need_cased || is_cased(cp);
    }
    return any;
}

/* ---- finding and replacing ---- */

const char *text_find(Interp *in, Str s, Str part, bool last)
{
    if (!interp_charge_bytes(in, s.len) || part.len > s.len) return NULL;
    if (!last) return part.len ? memmem(s.data, s.len, part.data, part.len) : s.data;
    if (!interp_charge_bytes(in, (s.len - part.len) * part.len)) return NULL;
    for (const char *p = s.data + s.len - part.len;; p--) {
        if (part.len == 0 || memcmp(p, part.data, part.len) == 0) return p;
        if (p == s.data) return NULL;
    }
}

/* 'abc'.replace('', '-') puts it between all characters. */
static void replace_nothing(Interp *in, Buf *b, Str s, Str new, int64_t max)
{
    const char *p = s.data, *end = s.data + s.len;
    for (int64_t i = 0; i < max && interp_charge(in, (i & 3) == 3); i++) {
        buf_append(b, new.data, new.len);
        if (p == end) return;
        const char *begin = p;
        utf8_read(&p);
        buf_append(b, begin, (size_t)(p - begin));
    }
    buf_append(b, p, (size_t)(end - p));
}

Value text_replace(Interp *in, Str s, Str old, Str new, int64_t max)
{
    Buf b;
    if (max < 0) max = INT64_MAX;
    text_begin(&b);
    if (old.len == 0) {
        replace_nothing(in, &b, s, new, max);
        return text_end(in, &b);
    }
    const char *p = s.data, *end = s.data + s.len, *hit;
    for (int64_t i = 0; i < max && p < end && interp_charge(in, (i & 3) == 3); i++) {
        hit = memmem(p, (size_t)(end - p), old.data, old.len);
        if (!hit) break;
        buf_append(&b, p, (size_t)(hit - p));
        buf_append(&b, new.data, new.len);
        p = hit + old.len;
    }
    buf_append(&b, p, (size_t)(end - p));
    return text_end(in, &b);
}

/* ---- splitting ---- */

static Value reversed(Interp *in, ListBuilder *l)
{
    for (int64_t i = 0, k = l->n - 1; i < k; i++, k--) {
        Value v = l->items[i];
        l->items[i] = l->items[k];
        l->items[k] = v;
    }
    return value_list(in, V_LIST, l->items, l->n);
}

static void push_piece(Interp *in, ListBuilder *l, const char *begin, const char *end)
{
    list_push(in, l, value_str((Str){ begin, (size_t)(end - begin) }));
}

static Value split_from_right(Interp *in, Str s, Str separator, int64_t max)
{
    ListBuilder l = { 0 };
    const char *hit;
    while (l.n < max && (hit = text_find(in, s, separator, true))) {
        push_piece(in, &l, hit + separator.len, s.data + s.len);
        s.len = (size_t)(hit - s.data);
    }
    list_push(in, &l, value_str(s));
    return reversed(in, &l);
}

Value text_split(Interp *in, Str s, Str separator, int64_t max, bool from_right)
{
    ListBuilder l = { 0 };
    const char *p = s.data, *end = s.data + s.len, *hit;
    if (from_right && max < INT64_MAX) return split_from_right(in, s, separator, max);
    interp_charge_bytes(in, s.len);
    while (l.n < max && interp_charge(in, 1) && (hit = memmem(p, (size_t)(end - p), separator.data, separator.len))) {
        push_piece(in, &l, p, hit);
        p = hit + separator.len;
    }
    push_piece(in, &l, p, end);
    return value_list(in, V_LIST, l.items, l.n);
}

static const char *skip_chars(const char *p, const char *end, bool space)
{
    for (const char *next = p; p < end; p = next) {
        if (char_is_space(utf8_read(&next)) != space) break;
    }
    return p;
}

static const char *skip_chars_back(const char *begin, const char *p, bool space)
{
    while (p > begin) {
        const char *last = previous_char(p), *q = last;
        if (char_is_space(utf8_read(&q)) != space) break;
        p = last;
    }
    return p;
}

static Value split_space_from_right(Interp *in, Str s, int64_t max)
{
    ListBuilder l = { 0 };
    const char *begin = s.data, *end = skip_chars_back(begin, s.data + s.len, true);
    while (end > begin && interp_charge(in, 1)) {
        const char *word = l.n < max ? skip_chars_back(begin, end, false) : begin;
        push_piece(in, &l, word, end);
        end = skip_chars_back(begin, word, true);
    }
    return reversed(in, &l);
}

Value text_split_space(Interp *in, Str s, int64_t max, bool from_right)
{
    ListBuilder l = { 0 };
    const char *p = s.data, *end = s.data + s.len;
    interp_charge(in, (int64_t)(s.len / 64));
    if (from_right && max < INT64_MAX) return split_space_from_right(in, s, max);
    while ((p = skip_chars(p, end, true)) < end && interp_charge(in, 1)) {
        const char *word_end = l.n < max ? skip_chars(p, end, false) : end;
        push_piece(in, &l, p, word_end);
        p = word_end;
    }
    return value_list(in, V_LIST, l.items, l.n);
}

static bool is_line_end(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

Value text_split_lines(Interp *in, Str s, bool keep_ends)
{
    ListBuilder l = { 0 };
    const char *p = s.data, *end = s.data + s.len, *begin = p;
    interp_charge(in, (int64_t)(s.len / 64));
    while (p < end && !in->failed) {
        const char *line_end = p;
        uint32_t cp = utf8_read(&p);
        if (!is_line_end(cp)) continue;
        if (cp == '\r' && p < end && *p == '\n') p++;
        push_piece(in, &l, begin, keep_ends ? p : line_end);
        interp_charge(in, 1);
        begin = p;
    }
    if (begin < end) push_piece(in, &l, begin, end);
    return value_list(in, V_LIST, l.items, l.n);
}
