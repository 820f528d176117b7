/* Bytes of tokens to text. A character may be spread over several tokens: its beginning is held until the rest comes or
 * cannot come any more.
 *
 * Always: held[n_held] is a true beginning of a well-formed sequence. Ill-formed bytes become U+FFFD as Python's
 * errors="replace" has it, whatever the grouping (utf8_next). */
#include "text/tokenizer_impl.h"

void detokenizer_init(Detokenizer *d, const Tokenizer *t, bool skip_special)
{
    *d = (Detokenizer){ .tokenizer = t, .skip_special = skip_special };
}

/* Appends the characters that text[n] holds whole; bytes consumed. The rest is the beginning of a character. */
static size_t append_whole(Buf *out, const char *text, size_t n)
{
    size_t at = 0, good = 0; /* text[good .. at) is well formed and not yet appended */
    uint32_t cp;
    while (at < n) {
        int length = utf8_next(text + at, n - at, &cp);
        if (length == 0) break;
        if (length < 0) {
            buf_append(out, text + good, at - good);
            buf_codepoint(out, REPLACEMENT_CHARACTER);
            good = at - (size_t)length;
        }
        at += (size_t)(length < 0 ? -length : length);
    }
    buf_append(out, text + good, at - good);
    return at;
}

/* Takes single bytes until nothing is held; bytes taken. */
static size_t finish_held(Detokenizer *d, Buf *out, const char *text, size_t n)
{
    size_t taken = 0;
    while (d->n_held > 0 && taken < n) {
        char bytes[4];
        memcpy(bytes, d->held, (size_t)d->n_held);
        bytes[d->n_held] = text[taken++];
        size_t whole = append_whole(out, bytes, (size_t)d->n_held + 1);
        d->n_held = d->n_held + 1 - (int)whole;
        memcpy(d->held, bytes + whole, (size_t)d->n_held);
    }
    return taken;
}

void detokenizer_push(Detokenizer *d, int32_t id, Buf *out)
{
    bool special;
    Str bytes = tokenizer_token_bytes(d->tokenizer, id, &special);
    if (special && d->skip_special) return;
    size_t at = finish_held(d, out, bytes.data, bytes.len);
    if (at == bytes.len) return;
    at += append_whole(out, bytes.data + at, bytes.len - at);
    d->n_held = (int)(bytes.len - at);
    memcpy(d->held, bytes.data + at, bytes.len - at);
}

void detokenizer_end(Detokenizer *d, Buf *out)
{
    if (d->n_held > 0) buf_codepoint(out, REPLACEMENT_CHARACTER);
    d->n_held = 0;
}
