/* What of a choice's text may be shown.
 *
 *     def f(x):\n    return x\n```     a stop string may begin anywhere in the tail,
 *     ├──── n_ready ────────────┤└┬┘   so what could still become one is held back
 *                             held
 *
 * Stop strings are followed byte by byte, one automaton each (Knuth, Morris and Pratt 1977): stop_seen is how much of
 * the stop string the text now ends in. It grows by at most one a byte, so n_ready = len - the largest of them never
 * shrinks. The text goes in byte by byte whatever the tokens were: the same text comes out however they are grouped. */
#include "text/answer.h"
#include "base/memory.h"
#include "text/unicode_impl.h"

/* retry[i]: the longest proper beginning of stop[0 .. i] that it also ends in. */
static void fill_retry(const char *stop, size_t len, uint8_t *retry)
{
    size_t seen = 0;
    retry[0] = 0;
    for (size_t i = 1; i < len; i++) {
        while (seen > 0 && stop[i] != stop[seen]) seen = retry[seen - 1];
        if (stop[i] == stop[seen]) seen++;
        retry[i] = (uint8_t)seen;
    }
}

static Status take_stop(Answer *a, int i, Str stop, Error *err)
{
    if (stop.len == 0 || stop.len > MAX_STOP_STRING_BYTES) {
        return error_set_param(err, ERR_INPUT, "stop", "a stop string must have 1 to %d bytes, got %zu",
                               MAX_STOP_STRING_BYTES, stop.len);
    }
    if (utf8_valid_bytes(stop.data, stop.len) != stop.len) {
        return error_set_param(err, ERR_INPUT, "stop", "a stop string is not valid UTF-8");
    }
    memcpy(a->stop_bytes[i], stop.data, stop.len);
    a->stop_len[i] = stop.len;
    fill_retry(a->stop_bytes[i], stop.len, a->stop_retry[i]);
    return OK;
}

Status answer_init(Answer *a, const AnswerOptions *options, Error *err)
{
    memset(a, 0, sizeof *a);
    a->options = *options;
    a->options.stops = NULL; /* copied below; the caller's list may go */
    a->stop = -1;
    detokenizer_init(&a->detokenizer, options->tokenizer, options->skip_special);
    buf_init(&a->text, options->max_bytes);
    if (options->n_stops > MAX_STOP_STRINGS) {
        return error_set_param(err, ERR_INPUT, "stop", "at most %d stop strings are allowed, got %d", MAX_STOP_STRINGS,
                               options->n_stops);
    }
    for (int i = 0; i < options->n_stops; i++) {
        Status status = take_stop(a, i, options->stops[i], err);
        if (status != OK) return status;
    }
    return OK;
}

void answer_free(Answer *a)
{
    buf_free(&a->text);
}

/* Follows stop string i over one more byte; true when it is complete. */
static bool follow(Answer *a, int i, char byte)
{
    const char *stop = a->stop_bytes[i];
    size_t seen = a->stop_seen[i];
    while (seen > 0 && stop[seen] != byte) seen = a->stop_retry[i][seen - 1];
    if (stop[seen] == byte) seen++;
    if (seen == a->stop_len[i]) return true; /* not stored: 256 would not fit, and nothing comes after it */
    a->stop_seen[i] = (uint8_t)seen;
    return false;
}

/* Index of the longest stop string that text[0 .. end] ends in, -1 = none. */
static int stop_at(Answer *a, size_t end)
{
    int found = -1;
    for (int i = 0; i < a->options.n_stops; i++) {
        if (follow(a, i, a->text.data[end - 1]) && (found < 0 || a->stop_len[i] > a->stop_len[found])) found = i;
    }
    return found;
}

static void cut_at_stop(Answer *a, int stop, size_t end)
{
    a->stop = stop;
    a->text.len = a->options.include_stop ? end : end - a->stop_len[stop];
    a->text.data[a->text.len] = '\0';
    a->n_ready = a->text.len;
}

/* Looks at the bytes from `begin` on, which are new. */
static void scan(Answer *a, size_t begin)
{
    for (size_t end = begin + 1; end <= a->text.len; end++) {
        int stop = stop_at(a, end);
        if (stop < 0) continue;
        cut_at_stop(a, stop, end);
        return;
    }
    size_t held = 0;
    for (int i = 0; i < a->options.n_stops; i++) {
        if (a->stop_seen[i] > held) held = a->stop_seen[i];
    }
    a->n_ready = a->text.len - held;
}

bool answer_push(Answer *a, int32_t token)
{
    if (a->stop >= 0 || a->text.failed) return false;
    size_t begin = a->text.len;
    detokenizer_push(&a->detokenizer, token, &a->text);
    a->n_tokens++;
    scan(a, begin);
    return a->stop < 0 && !a->text.failed;
}

void answer_end(Answer *a)
{
    if (a->stop >= 0) return;
    size_t begin = a->text.len;
    detokenizer_end(&a->detokenizer, &a->text);
    scan(a, begin);
    a->n_ready = a->text.len;
}
