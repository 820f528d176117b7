/* See scan.h. Every step looks at a byte once; a decoded string is never longer than what it came from. */
#include "tensor/scan.h"

#include "base/buf.h"

#include <string.h>

Status scan_bad(const Scan *s, const char *what)
{
    return error_set(s->err, ERR_INPUT, "byte %zu of %s: %s", s->at, s->what, what);
}

void scan_space(Scan *s)
{
    while (s->at < s->n && strchr(" \t\n\r", s->text[s->at]) && s->text[s->at]) s->at++;
}

bool scan_take(Scan *s, char c)
{
    scan_space(s);
    if (s->at >= s->n || s->text[s->at] != c) return false;
    s->at++;
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The four hex digits behind "\u"; -1 when they are not there. */
static int32_t take_hex4(Scan *s)
{
    int32_t value = 0;
    if (s->n - s->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(s->text[s->at + (size_t)i]);
        if (digit < 0) return -1;
        value = 16 * value + digit;
    }
    s->at += 4;
    return value;
}

/* The character of an escape by its four hex digits, or of a surrogate pair of them; -1 when it is none. */
static int32_t take_unicode_escape(Scan *s)
{
    int32_t c = take_hex4(s);
    if (c < 0xd800 || c > 0xdfff) return c;
    if (c > 0xdbff || s->n - s->at < 2 || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u') return -1;
    s->at += 2;
    int32_t low = take_hex4(s);
    if (low < 0xdc00 || low > 0xdfff) return -1;
    return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

static size_t put_utf8(char *out, int32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* One escape, s->at behind the backslash, decoded to out. */
static Status take_escape(Scan *s, char *out, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->at >= s->n) return scan_bad(s, "it ends inside a string");
    char c = s->text[s->at++];
    const char *known = c ? strchr(from, c) : NULL;
    int32_t code = known ? to[known - from] : c == 'u' ? take_unicode_escape(s) : -1;
    if (code < 0) return scan_bad(s, "a string holds an invalid escape");
    if (code == 0) return scan_bad(s, "a string holds a NUL character");
    *n = put_utf8(out, code);
    return OK;
}

Status scan_string(Scan *s, char **out)
{
    if (!scan_take(s, '"')) return scan_bad(s, "a string is expected");
    char *write = s->text + s->at;
    *out = write;
    while (s->at < s->n) {
        const char *here = s->text + s->at;
        unsigned char c = (unsigned char)*here;
        size_t bad_bytes, n = utf8_length(here, s->n - s->at, &bad_bytes);
        if (n == 0) return scan_bad(s, "it is not valid UTF-8");
        if (c < 0x20) return scan_bad(s, "a string holds a bare control character");
        s->at += n;
        if (c == '"') {
            *write = '\0';
            return OK;
        }
        if (c == '\\') {
            Status status = take_escape(s, write, &n);
            if (status != OK) return status;
        } else {
            memmove(write, here, n);
        }
        write += n;
    }
    return scan_bad(s, "it ends inside a string");
}

Status scan_count(Scan *s, int64_t *out)
{
    scan_space(s);
    size_t first = s->at;
    int64_t value = 0;
    for (; s->at < s->n && s->text[s->at] >= '0' && s->text[s->at] <= '9'; s->at++) {
        int digit = s->text[s->at] - '0';
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value)) {
            return scan_bad(s, "an integer is larger than 2^63 - 1");
        }
    }
    bool more = s->at < s->n && strchr(".eE+-", s->text[s->at]) && s->text[s->at];
    if (s->at == first || more) return scan_bad(s, "a non-negative integer is expected");
    if (s->text[first] == '0' && s->at - first > 1) return scan_bad(s, "an integer has a leading zero");
    *out = value;
    return OK;
}

/* ---- values that nobody wants ---- */

static Status skip_word(Scan *s)
{
    size_t first = s->at;
    while (s->at < s->n && s->text[s->at] && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", s->text[s->at])) s->at++;
    return s->at > first ? OK : scan_bad(s, "a value is expected");
}

Status scan_skip(Scan *s)
{
    char *text, open[SCAN_MAX_DEPTH];
    int depth = 0;
    do {
        scan_space(s);
        const char c = s->at < s->n ? s->text[s->at] : 0;
        Status status = OK;
        if (c == '{' || c == '[') {
            if (depth == SCAN_MAX_DEPTH) return scan_bad(s, "it nests too deeply");
            open[depth++] = c;
            s->at++;
        } else if (depth && c == (open[depth - 1] == '{' ? '}' : ']')) {
            depth--;
            s->at++;
        } else if (depth && (c == ',' || c == ':')) {
            s->at++;
        } else if ((status = c == '"' ? scan_string(s, &text) : skip_word(s)) != OK) {
            return status;
        }
    } while (depth);
    return OK;
}
