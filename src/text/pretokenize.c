/* Text to words: each step cuts the pieces of the step before by a regular expression. Matches and what lies between
 * them are both pieces ("isolated"), and a piece is all that the next step's look-ahead can see.
 *
 * PCRE2 with its JIT knows the same characters as Oniguruma, which the published tokenizers were made with, except one:
 * its \s holds U+180E, and but for its age: younger characters are replaced by stand-ins of the same length in the copy
 * that the patterns see. So \s and \S are spelt out before compiling. Where the system forbids a JIT its interpreter
 * runs: slower, the same cuts. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer_impl.h"
#include "base/memory.h"

#include <pcre2.h>

#define WHITE_SPACE                                                                                                    \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

enum { JIT_STACK_FIRST_BYTES = 32 << 10, JIT_STACK_LAST_BYTES = 1 << 20, MAX_PATTERN_BYTES = 1 << 16 };

struct PreTokenizer {
    pcre2_general_context *general;
    int                    n_steps;
    struct Step {
        pcre2_code *code;
        bool        jit;
    } steps[MAX_PRETOKENIZE_STEPS];
};

struct PreTokenizeWork {
    pcre2_match_context *context;
    pcre2_jit_stack     *stack;
    pcre2_match_data    *match[MAX_PRETOKENIZE_STEPS]; /* one a step: they nest */
    Buf                  shown;                        /* the text with stand-ins, when it needs any */
};

static void *pcre2_memory(size_t bytes, void *user)
{
    return mem_realloc(NULL, bytes);
}

static void pcre2_give(void *p, void *user)
{
    mem_free(p);
}

/* The pattern with \s and \S spelt out. Inside a class \S stays as it is: no list can say it there. */
static void spell_out_spaces(Buf *out, Str pattern)
{
    bool in_class = false;
    for (size_t i = 0; i < pattern.len; i++) {
        char c = pattern.data[i], next = i + 1 < pattern.len ? pattern.data[i + 1] : '\0';
        if (c == '\\' && next == 's') {
            buf_text(out, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
            i++;
        } else if (c == '\\' && next == 'S' && !in_class) {
            buf_text(out, "[^" WHITE_SPACE "]");
            i++;
        } else if (c == '\\' && next) {
            buf_append(out, pattern.data + i++, 2);
        } else if (in_class && c == '[' && next == ':') { /* [:name:], whose ] does not end the class */
            do buf_append(out, pattern.data + i, 1);
            while (pattern.data[i] != ']' && ++i < pattern.len);
        } else {
            if (c == '[') in_class = true;
            if (c == ']') in_class = false;
            buf_append(out, &c, 1);
        }
    }
}

static Status step_compile(struct Step *step, const PreTokenizeStep *from, pcre2_compile_context *context, Error *err)
{
    Buf pattern;
    buf_init(&pattern, MAX_PATTERN_BYTES);
    if (from->literal) buf_append(&pattern, from->pattern.data, from->pattern.len);
    else spell_out_spaces(&pattern, from->pattern);
    if (pattern.failed) {
        bool is_long = from->pattern.len > MAX_PATTERN_BYTES / 128; /* a \s grows to some 100 bytes */
        buf_free(&pattern);
        if (!is_long) return error_set(err, ERR_NOMEM, "no memory for the pre-tokenizer");
        return error_set(err, ERR_INPUT, "a pre-tokenizer pattern is longer than %d bytes", MAX_PATTERN_BYTES);
    }
    uint32_t options = PCRE2_UTF | (from->literal ? PCRE2_LITERAL : PCRE2_UCP);
    int code = 0;
    PCRE2_SIZE at = 0;
    step->code =
        pcre2_compile((PCRE2_SPTR)(pattern.data ? pattern.data : ""), pattern.len, options, &code, &at, context);
    buf_free(&pattern);
    if (code == PCRE2_ERROR_HEAP_FAILED) return error_set(err, ERR_NOMEM, "no memory for the pre-tokenizer");
    if (!step->code) {
        PCRE2_UCHAR why[120] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return error_set(err, ERR_INPUT, "the pre-tokenizer pattern \"%.*s\" does not compile: %s",
                         (int)(from->pattern.len < 200 ? from->pattern.len : 200), from->pattern.data, (char *)why);
    }
    step->jit = pcre2_jit_compile(step->code, PCRE2_JIT_COMPLETE) == 0;
    return OK;
}

Status pretokenizer_open(PreTokenizer **out, const Vocab *vocab, Error *err)
{
    *out = NULL;
    PreTokenizer *p = mem_alloc(sizeof *p);
    if (p) p->general = pcre2_general_context_create(pcre2_memory, pcre2_give, NULL);
    pcre2_compile_context *context = p && p->general ? pcre2_compile_context_create(p->general) : NULL;
    Status status = context ? OK : error_set(err, ERR_NOMEM, "no memory for the pre-tokenizer");
    for (int i = 0; status == OK && i < vocab->n_steps; i++) {
        p->n_steps = i + 1;
        status = step_compile(&p->steps[i], &vocab->steps[i], context, err);
    }
    pcre2_compile_context_free(context);
    if (status != OK) {
        pretokenizer_close(p);
        return status;
    }
    *out = p;
    return OK;
}

void pretokenizer_close(PreTokenizer *p)
{
    if (!p) return;
    for (int i = 0; i < p->n_steps; i++) pcre2_code_free(p->steps[i].code);
    pcre2_general_context_free(p->general);
    mem_free(p);
}

Status pretokenize_work_open(PreTokenizeWork **out, const PreTokenizer *p, Error *err)
{
    *out = NULL;
    PreTokenizeWork *work = mem_alloc(sizeof *work);
    bool ok = work != NULL;
    if (ok) buf_init(&work->shown, SIZE_MAX);
    if (ok) work->context = pcre2_match_context_create(p->general);
    if (ok) work->stack = pcre2_jit_stack_create(JIT_STACK_FIRST_BYTES, JIT_STACK_LAST_BYTES, p->general);
    ok = ok && work->context && work->stack;
    if (ok) pcre2_jit_stack_assign(work->context, NULL, work->stack);
    for (int i = 0; ok && i < p->n_steps; i++) {
        work->match[i] = pcre2_match_data_create(1, p->general);
        ok = work->match[i] != NULL;
    }
    if (!ok) {
        pretokenize_work_close(work);
        return error_set(err, ERR_NOMEM, "no memory for the pre-tokenizer");
    }
    *out = work;
    return OK;
}

void pretokenize_work_close(PreTokenizeWork *work)
{
    if (!work) return;
    for (int i = 0; i < MAX_PRETOKENIZE_STEPS; i++) pcre2_match_data_free(work->match[i]);
    pcre2_jit_stack_free(work->stack);
    pcre2_match_context_free(work->context);
    buf_free(&work->shown);
    mem_free(work);
}

void pretokenize_work_trim(PreTokenizeWork *work)
{
    if (work->shown.capacity > 1 << 20) buf_free(&work->shown);
}

typedef struct Cut {
    const PreTokenizer *p;
    PreTokenizeWork    *work;
    const char         *text, *shown; /* what the words are taken from, what the patterns see */
    WordSink            sink;
    void               *user;
    Error              *err;
} Cut;

/* First match at or behind `from`; *begin = n when there is none. */
static Status next_match(const Cut *c, int i, const char *text, size_t n, size_t from, size_t *begin, size_t *end)
{
    const struct Step *step = &c->p->steps[i];
    pcre2_match_data *match = c->work->match[i];
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int got = step->jit ? pcre2_jit_match(step->code, subject, n, from, PCRE2_NO_UTF_CHECK, match, c->work->context)
                        : pcre2_match(step->code, subject, n, from, PCRE2_NO_UTF_CHECK, match, c->work->context);
    if (got == PCRE2_ERROR_NOMATCH) {
        *begin = *end = n;
        return OK;
    }
    if (got < 0) {
        PCRE2_UCHAR why[120] = "";
        pcre2_get_error_message(got, why, sizeof why);
        return error_set(c->err, ERR_INPUT, "the pre-tokenizer gave up on this text: %s", (char *)why);
    }
    *begin = pcre2_get_ovector_pointer(match)[0];
    *end = pcre2_get_ovector_pointer(match)[1];
    if (*begin >= from && *begin <= *end) return OK;
    return error_set(c->err, ERR_UNSUPPORTED,
                     "the pre-tokenizer pattern moves its match backwards, which is not supported");
}

/* Cuts text[n] from step i on. Recursion is as deep as there are steps. */
static Status cut(const Cut *c, int i, const char *text, size_t n)
{
    if (i == c->p->n_steps) {
        c->sink(c->user, c->text + (text - c->shown), n);
        return OK;
    }
    Status status = OK;
    size_t done = 0, from = 0, begin = n, end = n;
    while (status == OK && from < n) {
        status = next_match(c, i, text, n, from, &begin, &end);
        if (status != OK || begin == n) break;
        if (begin > done) status = cut(c, i + 1, text + done, begin - done);
        if (status == OK && end > begin) status = cut(c, i + 1, text + begin, end - begin);
        done = from = end;
        if (end > begin) continue;
        do from++; /* an empty match parts the text; the search goes on behind the next character */
        while (from < n && ((uint8_t)text[from] & 0xC0) == 0x80);
    }
    if (status == OK && done < n) status = cut(c, i + 1, text + done, n - done);
    return status;
}

/* Where a character from `from` on needs a stand-in; n when none does. */
static size_t next_young(const char *text, size_t from, size_t n)
{
    const char *at = text + from, *end = text + n;
    while ((at += ascii_bytes(at, (size_t)(end - at))) < end) {
        const char *begin = at;
        uint32_t cp = utf8_read(&at);
        if (category_stand_in(cp) != cp) return (size_t)(begin - text);
    }
    return n;
}

/* The text as the patterns shall see it: itself, nearly always. NULL: no memory. */
static const char *show(Buf *shown, const char *text, size_t n)
{
    size_t young = next_young(text, 0, n);
    if (young == n) return text;
    buf_clear(shown);
    buf_append(shown, text, n);
    for (; !shown->failed && young < n; young = next_young(text, young, n)) {
        const char *at = text + young;
        char *place = shown->data + young;
        young += (size_t)utf8_encode(category_stand_in(utf8_read(&at)), place);
    }
    return shown->failed ? NULL : shown->data;
}

Status pretokenize(const PreTokenizer *p, PreTokenizeWork *work, const char *text, size_t n, WordSink sink, void *user,
                   Error *err)
{
    Cut c = { p, work, text, show(&work->shown, text, n), sink, user, err };
    if (!c.shown) return error_set(err, ERR_NOMEM, "no memory to tokenize %zu bytes", n);
    return n > 0 ? cut(&c, 0, c.shown, n) : OK;
}
