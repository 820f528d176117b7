/* NFC: decompose, order the marks, compose. Tables and composition are utf8proc's.
 *
 * Ordering is ours, because utf8proc swaps neighbours until all is in order: quadratic in the length of a run of marks,
 * and the text comes from strangers. A stable counting sort per run is linear.
 *
 * Characters younger than the original's tables (unicode_age.c) part the text: nothing moves or composes over them. */
#include "text/unicode_impl.h"
#include "base/memory.h"

#include <utf8proc.h>

enum { MAX_DECOMPOSED = 4 /* code points that one expands to, canonically */ };

static int combining_class(int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

static bool work_reserve(NfcWork *work, size_t n)
{
    if (n <= work->capacity) return true;
    size_t capacity = n + n / 2;
    int32_t *more = mem_realloc(work->codepoints, capacity * sizeof *more);
    if (!more) return false;
    work->codepoints = more;
    work->capacity = capacity;
    return true;
}

void nfc_work_free(NfcWork *work)
{
    mem_free(work->codepoints);
    *work = (NfcWork){ 0 };
}

static bool decompose(NfcWork *work, const char *text, size_t n, size_t *n_out)
{
    const char *end = text + n;
    int boundary = 0;
    for (*n_out = 0; text < end;) {
        if (!work_reserve(work, *n_out + MAX_DECOMPOSED)) return false;
        int32_t *at = work->codepoints + *n_out;
        utf8proc_ssize_t wrote = utf8proc_decompose_char((utf8proc_int32_t)utf8_read(&text), at, MAX_DECOMPOSED,
                                                         UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        CHECK(wrote >= 0 && wrote <= MAX_DECOMPOSED);
        *n_out += (size_t)wrote;
    }
    return true;
}

static void sort_few_marks(int32_t *marks, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        int32_t mark = marks[i];
        size_t at = i;
        for (; at > 0 && combining_class(marks[at - 1]) > combining_class(mark); at--) marks[at] = marks[at - 1];
        marks[at] = mark;
    }
}

static void sort_many_marks(int32_t *marks, size_t n, int32_t *spare)
{
    size_t place[257] = { 0 };
    for (size_t i = 0; i < n; i++) place[combining_class(marks[i]) + 1]++;
    for (int c = 1; c < 257; c++) place[c] += place[c - 1];
    for (size_t i = 0; i < n; i++) spare[place[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, spare, n * sizeof *marks);
}

/* Sorts every run of characters of a class above 0 by class, stably. The second half of the work is the spare. */
static void order_marks(NfcWork *work, size_t n)
{
    int32_t *cps = work->codepoints;
    for (size_t i = 0; i < n;) {
        size_t begin = i;
        while (i < n && combining_class(cps[i]) > 0) i++;
        size_t run = i - begin;
        if (run > 32) sort_many_marks(cps + begin, run, cps + n);
        else if (run > 1) sort_few_marks(cps + begin, run);
        if (run == 0) i++;
    }
}

static Status append_stretch(Buf *out, const char *text, size_t n, NfcWork *work, Error *err)
{
    size_t n_cps = 0;
    if (!decompose(work, text, n, &n_cps) || !work_reserve(work, 2 * n_cps)) {
        return error_set(err, ERR_NOMEM, "no memory to normalise %zu bytes of text", n);
    }
    order_marks(work, n_cps);
    utf8proc_ssize_t n_composed = utf8proc_normalize_utf32(work->codepoints, (utf8proc_ssize_t)n_cps,
                                                           UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    CHECK(n_composed >= 0);
    for (utf8proc_ssize_t i = 0; i < n_composed; i++) buf_codepoint(out, (uint32_t)work->codepoints[i]);
    if (out->failed) return error_set(err, ERR_NOMEM, "no memory to normalise %zu bytes of text", n);
    return OK;
}

/* Length of the beginning of text[n] that holds no inert character. */
static size_t stretch_bytes(const char *text, size_t n)
{
    const char *end = text + n;
    for (const char *at = text; at < end;) {
        const char *begin = at;
        if (nfc_is_inert(utf8_read(&at))) return (size_t)(begin - text);
    }
    return n;
}

Status nfc_append(Buf *out, const char *text, size_t n, NfcWork *work, Error *err)
{
    const char *end = text + n;
    while (text < end) {
        size_t stretch = stretch_bytes(text, (size_t)(end - text));
        Status status = append_stretch(out, text, stretch, work, err);
        if (status != OK) return status;
        text += stretch;
        if (text < end) buf_codepoint(out, utf8_read(&text));
    }
    return out->failed ? error_set(err, ERR_NOMEM, "no memory to normalise %zu bytes of text", n) : OK;
}
