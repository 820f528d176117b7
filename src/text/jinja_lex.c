/* Template source to tokens, white space control included: what the parser sees as text is what will be written.
 *
 *     {{ ... }}  output     {% ... %}  block     {# ... #}  comment, dropped     {% raw %} ... {% endraw %}  text
 *
 * Three rules decide about white space, as Jinja2 has them with trim_blocks and lstrip_blocks on:
 *     {%- -%} and the like   cut all of it on that side
 *     before {% or {#        blanks between the beginning of a line and the tag go, unless {%+
 *     after %} or #}         one newline goes, unless +%} */
#include "base/planted.h"
#include "text/jinja_ast_impl.h"
#include "text/unicode_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Lexer {
    Arena      *arena;
    const char *source; /* newlines are \n */
    size_t      at, n;
    int         line;
    bool        line_starting; /* a newline went with the tag before: what follows begins a line */
    Token      *tokens;
    int         n_tokens, capacity;
    char        brackets[MAX_TEMPLATE_NESTING]; /* closers that are awaited */
    int         n_brackets;
    Error      *err;
    bool        failed;
    Status      status; /* why */
    Token       lost; /* what add_token() gives after a failure; nobody reads it */
} Lexer;

static void fail(Lexer *lx, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(Lexer *lx, const char *format, ...)
{
    char what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (!lx->failed)
        lx->status = error_set(lx->err, ERR_INPUT, "the chat template cannot be parsed: %s in line %d", what, lx->line);
    lx->failed = true;
}

static void fail_memory(Lexer *lx, size_t bytes)
{
    Status why = arena_refusal(lx->arena, bytes);
    if (!lx->failed) lx->status = error_set(lx->err, why, "no memory to parse the chat template");
    lx->failed = true;
}

static Token *add_token(Lexer *lx, TokenType type)
{
    if (lx->n_tokens == lx->capacity) {
        int capacity = lx->capacity ? 2 * lx->capacity : 256;
        Token *more = arena_array(lx->arena, Token, capacity);
        if (!more) {
            fail_memory(lx, (size_t)capacity * sizeof *more);
            return &lx->lost;
        }
        if (lx->n_tokens) memcpy(more, lx->tokens, (size_t)lx->n_tokens * sizeof *more);
        lx->tokens = more;
        lx->capacity = capacity;
    }
    Token *t = &lx->tokens[lx->n_tokens++];
    *t = (Token){ .type = type, .line = lx->line };
    return t;
}

/* ---- looking around ---- */

static char peek(const Lexer *lx, size_t ahead)
{
    return lx->at + ahead < lx->n ? lx->source[lx->at + ahead] : '\0';
}

static bool starts_with(const Lexer *lx, size_t at, const char *text)
{
    size_t len = strlen(text);
    return lx->n - at >= len && memcmp(lx->source + at, text, len) == 0;
}

static size_t find(const Lexer *lx, size_t at, const char *text)
{
    const char *hit = at < lx->n ? memmem(lx->source + at, lx->n - at, text, strlen(text)) : NULL;
    return hit ? (size_t)(hit - lx->source) : lx->n;
}

static void move_to(Lexer *lx, size_t to)
{
    for (; lx->at < to; lx->at++) lx->line += lx->source[lx->at] == '\n';
}

/* End of the white space that begins at `at`. */
static size_t skip_space(const Lexer *lx, size_t at)
{
    while (at < lx->n) {
        const char *p = lx->source + at;
        if (!char_is_space(utf8_read(&p))) break;
        at = (size_t)(p - lx->source);
    }
    return at;
}

/* Where the white space that ends at `end` begins, not before `begin`. */
static size_t trim_back(const Lexer *lx, size_t begin, size_t end)
{
    while (end > begin) {
        size_t last = end - 1;
        while (last > begin && ((uint8_t)lx->source[last] & 0xC0) == 0x80) last--;
        const char *p = lx->source + last;
        if (!char_is_space(utf8_read(&p))) break;
        end = last;
    }
    return end;
}

/* ---- text and comments ---- */

/* Text from lx->at to the tag at `end`, whose sign (- or + or something else) follows its two characters. */
static void take_text(Lexer *lx, size_t end, bool is_output)
{
    size_t begin = lx->at, stop = end;
    char sign = end + 2 < lx->n ? lx->source[end + 2] : '\0';
    if (end < lx->n && sign == '-') {
        stop = trim_back(lx, begin, end);
    } else if (end < lx->n && sign != '+' && !is_output) {
        size_t blank = trim_back(lx, begin, end), line = end;
        while (line > begin && lx->source[line - 1] != '\n') line--;
        if (blank <= line && (line > begin || lx->line_starting)) stop = line;
    }
    if (stop > begin) add_token(lx, T_TEXT)->text = (Str){ lx->source + begin, stop - begin };
    move_to(lx, end);
}

/* Moves behind a tag's end at lx->at: "-%}" or "%}" or the like. trim: a newline behind it goes. */
static void take_tag_end(Lexer *lx, bool trim)
{
    char sign = peek(lx, 0);
    size_t end = lx->at + (sign == '-' || sign == '+' ? 3 : 2);
    if (sign == '-') end = skip_space(lx, end);
    else if (trim && sign != '+' && end < lx->n && lx->source[end] == '\n') end++;
    lx->line_starting = lx->source[end - 1] == '\n';
    move_to(lx, end);
}

static void take_comment(Lexer *lx)
{
    size_t begin = lx->at + (peek(lx, 2) == '-' || peek(lx, 2) == '+' ? 3 : 2), close = find(lx, begin, "#}");
    if (close == lx->n) {
        fail(lx, "a comment does not end");
        return;
    }
    bool has_sign = close > begin && (lx->source[close - 1] == '-' || lx->source[close - 1] == '+');
    move_to(lx, close - has_sign);
    take_tag_end(lx, true);
}

/* End of the tag "{% word %}" that may begin at `at`: where its closing "%}", sign included, begins; 0 = no such
 * tag. */
static size_t match_word_tag(const Lexer *lx, size_t at, const char *word)
{
    size_t p = at + 2;
    if (p < lx->n && (lx->source[p] == '-' || lx->source[p] == '+')) p++;
    p = skip_space(lx, p);
    if (!starts_with(lx, p, word)) return 0;
    p = skip_space(lx, p + strlen(word));
    if (starts_with(lx, p, "%}") || starts_with(lx, p, "-%}") || starts_with(lx, p, "+%}")) return p;
    return 0;
}

/* lx->at is the "%}" of {% raw %}. */
static void take_raw(Lexer *lx)
{
    take_tag_end(lx, false);
    size_t at = lx->at, close = 0;
    while ((at = find(lx, at, "{%")) < lx->n && (close = match_word_tag(lx, at, "endraw")) == 0) at++;
    if (at == lx->n) {
        fail(lx, "a raw block does not end");
        return;
    }
    lx->line_starting = false;
    take_text(lx, at, false);
    move_to(lx, close);
    take_tag_end(lx, true);
}

/* ---- inside tags ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name_char(char c) { return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static int hex_digit(char c)
{
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* \xHH, \uHHHH, \UHHHHHHHH: `digits` of them at p. */
static const char *take_hex(Lexer *lx, Buf *out, const char *p, const char *end, int digits)
{
    uint32_t cp = 0;
    for (int i = 0; i < digits; i++) {
        int digit = p < end ? hex_digit(*p++) : -1;
        if (digit < 0) {
            fail(lx, "a string has a malformed escape");
            return end;
        }
        cp = cp << 4 | (uint32_t)digit;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) fail(lx, "a string has an escape that is no character");
    else buf_codepoint(out, cp);
    return p;
}

static const char *take_octal(Buf *out, const char *p, const char *end)
{
    uint32_t cp = 0;
    for (int i = 0; i < 3 && p < end && *p >= '0' && *p <= '7'; i++) cp = cp * 8 + (uint32_t)(*p++ - '0');
    buf_codepoint(out, cp);
    return p;
}

/* One escape, p behind the backslash; p behind it. Unknown ones stay as they are, as in Python. */
static const char *take_escape(Lexer *lx, Buf *out, const char *p, const char *end)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *known = strchr(from, *p);
    if (*p == '\n') return p + 1;
    if (*p == 'x') return take_hex(lx, out, p + 1, end, 2);
    if (*p == 'u') return take_hex(lx, out, p + 1, end, 4);
    if (*p == 'U') return take_hex(lx, out, p + 1, end, 8);
    if (*p >= '0' && *p <= '7') return take_octal(out, p, end);
    if (!known || !*p) {
        buf_append(out, p - 1, 2);
        return p + 1;
    }
    buf_append(out, &to[known - from], 1);
    return p + 1;
}

static Str unescape(Lexer *lx, const char *p, const char *end)
{
    Buf out;
    buf_init(&out, MAX_TEMPLATE_BYTES);
    while (p < end && !lx->failed) {
        const char *slash = memchr(p, '\\', (size_t)(end - p));
        buf_append(&out, p, (size_t)((slash ? slash : end) - p));
        p = slash ? take_escape(lx, &out, slash + 1, end) : end;
    }
    Str s = { arena_strndup(lx->arena, out.data ? out.data : "", out.len), out.len };
    if (out.failed || !s.data) fail_memory(lx, out.len);
    buf_free(&out);
    return s;
}

static void take_string(Lexer *lx)
{
    char quote = peek(lx, 0);
    size_t end = lx->at + 1;
    while ((end < lx->n || PLANTED("template")) && lx->source[end] != quote) end += lx->source[end] == '\\' ? 2 : 1;
    if (end >= lx->n) {
        fail(lx, "a string does not end");
        return;
    }
    Token *t = add_token(lx, T_STRING);
    t->text = unescape(lx, lx->source + lx->at + 1, lx->source + end);
    move_to(lx, end + 1);
}

static size_t skip_digits(const Lexer *lx, size_t at)
{
    while (at < lx->n &&
           (is_digit(lx->source[at]) || (lx->source[at] == '_' && at + 1 < lx->n && is_digit(lx->source[at + 1]))))
        at++;
    return at;
}

/* Where the fraction and exponent of a number whose digits end at `at` end: `at` itself for an integer. */
static size_t skip_fraction(const Lexer *lx, size_t at)
{
    if (lx->at > 0 && lx->source[lx->at - 1] == '.') return at; /* a.1.2 is two subscripts */
    if (at + 1 < lx->n && lx->source[at] == '.' && is_digit(lx->source[at + 1])) at = skip_digits(lx, at + 1);
    if (at < lx->n && (lx->source[at] == 'e' || lx->source[at] == 'E')) {
        size_t p = at + 1;
        if (p < lx->n && (lx->source[p] == '+' || lx->source[p] == '-')) p++;
        if (p < lx->n && is_digit(lx->source[p])) at = skip_digits(lx, p);
    }
    return at;
}

static void take_number(Lexer *lx)
{
    char text[64];
    size_t whole = skip_digits(lx, lx->at), end = skip_fraction(lx, whole), n = 0;
    if (end - lx->at >= sizeof text) {
        fail(lx, "a number is too long");
        return;
    }
    for (size_t i = lx->at; i < end; i++) {
        if (lx->source[i] != '_') text[n++] = lx->source[i];
    }
    text[n] = '\0';
    Token *t = add_token(lx, end > whole ? T_FLOAT : T_INT);
    errno = 0;
    if (t->type == T_FLOAT) t->f = strtod(text, NULL);
    else t->i = strtoll(text, NULL, 10);
    if (t->type == T_INT && errno == ERANGE) fail(lx, "the number %s is too large", text);
    move_to(lx, end);
}

static void take_name(Lexer *lx)
{
    size_t end = lx->at;
    while (end < lx->n && is_name_char(lx->source[end])) end++;
    Token *t = add_token(lx, T_NAME);
    t->text = (Str){ lx->source + lx->at, end - lx->at };
    move_to(lx, end);
}

static void follow_brackets(Lexer *lx, char c)
{
    static const char openers[] = "([{", closers[] = ")]}";
    const char *open = strchr(openers, c);
    if (open) {
        if (lx->n_brackets == MAX_TEMPLATE_NESTING)
            fail(lx, "brackets nest deeper than %d levels", MAX_TEMPLATE_NESTING);
        else lx->brackets[lx->n_brackets++] = closers[open - openers];
    } else if (strchr(closers, c)) {
        if (lx->n_brackets == 0 || lx->brackets[--lx->n_brackets] != c) fail(lx, "unexpected '%c'", c);
    }
}

static void take_operator(Lexer *lx)
{
    static const char doubles[][3] = { "==", "!=", ">=", "<=", "//", "**" };
    char c = peek(lx, 0);
    for (int i = 0; i < COUNT(doubles); i++) {
        if (!starts_with(lx, lx->at, doubles[i])) continue;
        add_token(lx, T_OP)->op = OP(doubles[i][0], doubles[i][1]);
        move_to(lx, lx->at + 2);
        return;
    }
    if (!c || !strchr("+-/*%~[](){}><=.:|,", c)) {
        fail(lx, "unexpected character '%c'", c >= ' ' && c <= '~' ? c : '?');
        return;
    }
    add_token(lx, T_OP)->op = c;
    move_to(lx, lx->at + 1);
    follow_brackets(lx, c);
}

/* True and behind it when lx->at is where the tag ends. Inside brackets nothing ends a tag: {{ {'a': {}}['a'] }}. */
static bool at_tag_end(Lexer *lx, bool is_output)
{
    const char *end = is_output ? "}}" : "%}";
    char sign = peek(lx, 0);
    bool signed_end = (sign == '-' || (sign == '+' && !is_output)) && starts_with(lx, lx->at + 1, end);
    if (lx->n_brackets > 0 || (!signed_end && !starts_with(lx, lx->at, end))) return false;
    add_token(lx, is_output ? T_OUTPUT_END : T_BLOCK_END);
    take_tag_end(lx, !is_output);
    return true;
}

static void take_expression_token(Lexer *lx)
{
    char c = peek(lx, 0);
    if (c == '"' || c == '\'') take_string(lx);
    else if (is_digit(c)) take_number(lx);
    else if (is_name_char(c)) take_name(lx);
    else take_operator(lx);
}

/* lx->at is "{{" or "{%". */
static void take_tag(Lexer *lx, bool is_output)
{
    add_token(lx, is_output ? T_OUTPUT_BEGIN : T_BLOCK_BEGIN);
    char sign = peek(lx, 2);
    move_to(lx, lx->at + (sign == '-' || sign == '+' ? 3 : 2));
    lx->n_brackets = 0;
    while (!lx->failed) {
        if (at_tag_end(lx, is_output)) return;
        size_t next = skip_space(lx, lx->at);
        if (next == lx->n) fail(lx, "a tag does not end");
        else if (next > lx->at) move_to(lx, next);
        else take_expression_token(lx);
    }
}

/* Next {{, {% or {# at or behind `at`. */
static size_t find_tag(const Lexer *lx, size_t at)
{
    for (; (at = find(lx, at, "{")) < lx->n; at++) {
        char c = at + 1 < lx->n ? lx->source[at + 1] : '\0';
        if (c == '{' || c == '%' || c == '#') return at;
    }
    return lx->n;
}

static void lex_all(Lexer *lx)
{
    lx->line_starting = true;
    while (lx->at < lx->n && !lx->failed) {
        size_t tag = find_tag(lx, lx->at);
        char kind = tag < lx->n ? lx->source[tag + 1] : '\0';
        take_text(lx, tag, kind == '{');
        size_t raw = kind == '%' ? match_word_tag(lx, tag, "raw") : 0;
        if (kind == '#') {
            take_comment(lx);
        } else if (raw) {
            move_to(lx, raw);
            take_raw(lx);
        } else if (kind) {
            take_tag(lx, kind == '{');
        }
    }
    add_token(lx, T_END);
}

/* Copy with \r\n and \r as \n, the last newline dropped. */
static char *normalize_newlines(Arena *arena, const char *source, size_t n, size_t *n_out)
{
    char *copy = arena_alloc(arena, n + 1);
    size_t at = 0;
    for (size_t i = 0; copy && i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        copy[at++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (at > 0 && copy[at - 1] == '\n') at--;
    *n_out = at;
    return copy;
}

Status jinja_lex(Arena *arena, Token **tokens, int *n_tokens, const char *source, size_t n, Error *err)
{
    Lexer lx = { .arena = arena, .line = 1, .err = err };
    if (n > MAX_TEMPLATE_BYTES) {
        return error_set(err, ERR_INPUT, "the chat template is longer than %d bytes", MAX_TEMPLATE_BYTES);
    }
    size_t valid = utf8_valid_bytes(source, n);
    if (valid < n) return error_set(err, ERR_INPUT, "the chat template is not valid UTF-8 at offset %zu", valid);
    lx.source = normalize_newlines(arena, source, n, &lx.n);
    if (!lx.source) return error_set(err, arena_refusal(arena, n), "no memory to parse the chat template");
    lex_all(&lx);
    *tokens = lx.tokens;
    *n_tokens = lx.n_tokens;
    return lx.status;
}
