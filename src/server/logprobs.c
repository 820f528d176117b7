/* Logprobs of a piece's tokens, for the chat API and for the older one.
 *
 * A token may be half a character. The chat API carries its bytes beside a text with U+FFFD; the older one has only the
 * text, and uses it as a key of top_logprobs, so there such a token is written "bytes:\xe2\x80", as OpenAI does. */
#include "server/logprobs.h"

static bool is_text(Str bytes)
{
    size_t bad;
    for (size_t i = 0; i < bytes.len;) {
        size_t n = utf8_length(bytes.data + i, bytes.len - i, &bad);
        if (n == 0) return false;
        i += n;
    }
    return true;
}

static Str bytes_of(const Job *j, int32_t token)
{
    bool special;
    return tokenizer_token_bytes(j->server->stack.tokenizer, token, &special);
}

/* Nine digits are all of a float. -inf is the logprob of a token that could not come; JSON has no such number. */
static void write_logprob(float logprob, Buf *out)
{
    buf_printf(out, "%.9g", logprob > -9999.0f ? (double)logprob : -9999.0);
}

/* ---- chat ---- */

static void chat_token(const Job *j, int32_t token, float logprob, Buf *out)
{
    Str bytes = bytes_of(j, token);
    buf_text(out, "{\"token\":");
    buf_json_string(out, bytes.data, bytes.len);
    buf_text(out, ",\"logprob\":");
    write_logprob(logprob, out);
    buf_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.len; i++) buf_printf(out, i ? ",%d" : "%d", (unsigned char)bytes.data[i]);
    buf_text(out, "]");
}

void logprobs_chat(const Job *j, const JobChoice *c, const JobPiece *piece, Buf *out)
{
    if (j->fields.g.params.n_logprobs < 0 || piece->n == 0) {
        buf_text(out, "null");
        return;
    }
    const TokenLogprob *logprobs = job_logprobs(c) + piece->first;
    const int32_t *tokens = job_tokens(c) + piece->first;
    buf_text(out, "{\"content\":[");
    for (int32_t i = 0; i < piece->n; i++) {
        if (i) buf_text(out, ",");
        chat_token(j, tokens[i], logprobs[i].logprob, out);
        buf_text(out, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < logprobs[i].n_top; k++) {
            if (k) buf_text(out, ",");
            chat_token(j, logprobs[i].top_id[k], logprobs[i].top_logprob[k], out);
            buf_text(out, "}");
        }
        buf_text(out, "]}");
    }
    buf_text(out, "],\"refusal\":null}");
}

/* ---- legacy ---- */

/* The tokens of a piece, the echoed prompt's before them: four arrays over the same tokens. */
typedef struct Span {
    const int32_t      *tokens;
    const TokenLogprob *logprobs;
    int32_t             n;
    bool                first_unknown; /* nothing stands before the first token of a prompt */
} Span;

static void legacy_text(const Job *j, int32_t token, Buf *out)
{
    Str bytes = bytes_of(j, token);
    if (is_text(bytes)) {
        buf_json_string(out, bytes.data, bytes.len);
        return;
    }
    buf_text(out, "\"bytes:");
    for (size_t i = 0; i < bytes.len; i++) buf_printf(out, "\\\\x%02x", (unsigned char)bytes.data[i]);
    buf_text(out, "\"");
}

/* The most likely tokens and the chosen one. Two ids may share a text: the likelier one is written. */
static void legacy_top(const Job *j, int32_t token, const TokenLogprob *l, Buf *out)
{
    bool has_token = false;
    buf_text(out, "{");
    for (int32_t k = 0; k < l->n_top; k++) {
        bool is_repeated = false;
        for (int32_t i = 0; i < k; i++) is_repeated |= str_equal(bytes_of(j, l->top_id[i]), bytes_of(j, l->top_id[k]));
        has_token |= str_equal(bytes_of(j, l->top_id[k]), bytes_of(j, token));
        if (is_repeated) continue;
        if (k) buf_text(out, ",");
        legacy_text(j, l->top_id[k], out);
        buf_text(out, ":");
        write_logprob(l->top_logprob[k], out);
    }
    if (!has_token) {
        if (l->n_top) buf_text(out, ",");
        legacy_text(j, token, out);
        buf_text(out, ":");
        write_logprob(l->logprob, out);
    }
    buf_text(out, "}");
}

typedef enum Column { TOKENS, TOKEN_LOGPROBS, TOP_LOGPROBS, TEXT_OFFSETS } Column;

/* Characters that begin in these bytes. */
static size_t count_chars(Str bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes.len; i++) n += ((unsigned char)bytes.data[i] & 0xc0) != 0x80;
    return n;
}

static void write_column(const Job *j, const Span spans[2], Column column, size_t *n_chars, Buf *out)
{
    bool is_first = true;
    for (int k = 0; k < 2; k++) {
        const Span *s = &spans[k];
        for (int32_t i = 0; i < s->n; i++) {
            bool unknown = s->first_unknown && i == 0;
            if (!is_first) buf_text(out, ",");
            is_first = false;
            if (column == TOKENS) {
                legacy_text(j, s->tokens[i], out);
            } else if (column == TEXT_OFFSETS) {
                buf_printf(out, "%zu", *n_chars);
                *n_chars += count_chars(bytes_of(j, s->tokens[i]));
            } else if (unknown) {
                buf_text(out, "null");
            } else if (column == TOKEN_LOGPROBS) {
                write_logprob(s->logprobs[i].logprob, out);
            } else {
                legacy_top(j, s->tokens[i], &s->logprobs[i], out);
            }
        }
    }
}

void logprobs_legacy(const Job *j, JobChoice *c, const JobPiece *piece, Buf *out)
{
    static const char *const names[] = { "tokens", "token_logprobs", "top_logprobs", "text_offset" };
    Span spans[2] = { { .n = 0 }, { .n = 0 } };
    bool has_echo = j->echo && piece->is_first;
    if (j->fields.g.params.n_logprobs < 0 || (piece->n == 0 && !has_echo)) {
        buf_text(out, "null");
        return;
    }
    if (has_echo) {
        spans[0] = (Span){ .tokens = c->prompt->ids, .logprobs = request_prompt_logprobs(c->prompt->request), .n = c->prompt->n_ids,
                           .first_unknown = true };
    }
    if (piece->n) {
        spans[1] = (Span){ .tokens = job_tokens(c) + piece->first, .logprobs = job_logprobs(c) + piece->first, .n = piece->n };
    }
    for (int k = 0; k < COUNT(names); k++) {
        buf_printf(out, "%s\"%s\":[", k ? "," : "{", names[k]);
        write_column(j, spans, (Column)k, &c->n_chars, out);
        buf_text(out, "]");
    }
    buf_text(out, "}");
}
