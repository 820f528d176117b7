/* Tokenizer and templates behind a pipe, so that a script can put them beside the original libraries, question by
 * question in one run: compare_tokenizer.py, compare_templates.py.
 *
 *     question   char kind, u32 n, n bytes             answer   u8 failed, u64 nanoseconds, u32 n, n bytes
 *     'O'        "" or a cache directory               opens the tokenizer in the directory given as argument
 *     'E' 'P'    text (P: plain)                       its ids, i32 each
 *     'D'        ids, i32 each                         text, pushed token by token
 *     'T'        JSON: source, messages, tools ...     the rendered text
 *
 * A failed answer holds the sentence. The nanoseconds count the work alone. */
#include "base/json.h"
#include "base/memory.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_ANSWER_BYTES = 1 << 30 };

typedef struct Peer {
    const char       *dir;
    Tokenizer        *tokenizer;
    TokenizerScratch *scratch;
    int32_t          *ids;
    int64_t           n_ids, capacity;
    ChatTemplate     *template;
    char             *source; /* that template was parsed from */
    uint64_t          ns;
    Buf               answer;
} Peer;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static Status open_tokenizer(Peer *p, const char *cache_dir, Error *err)
{
    tokenizer_scratch_close(p->scratch);
    tokenizer_close(p->tokenizer);
    p->scratch = NULL;
    uint64_t begin = now_ns();
    Status status = tokenizer_open(&p->tokenizer, p->dir, *cache_dir ? cache_dir : NULL, err);
    p->ns = now_ns() - begin;
    return status != OK ? status : tokenizer_scratch_open(&p->scratch, p->tokenizer, err);
}

static Status encode(Peer *p, const char *text, size_t n, bool plain, Error *err)
{
    p->n_ids = 0;
    uint64_t begin = now_ns();
    Status status = tokenizer_encode(p->tokenizer, p->scratch, text, n, plain, INT32_MAX, &p->ids, &p->n_ids,
                                     &p->capacity, err);
    p->ns = now_ns() - begin;
    buf_append(&p->answer, p->ids, (size_t)p->n_ids * sizeof *p->ids);
    return status;
}

static Status decode(Peer *p, const char *bytes, size_t n)
{
    Detokenizer d;
    uint64_t begin = now_ns();
    detokenizer_init(&d, p->tokenizer, false);
    for (size_t at = 0; at + sizeof(int32_t) <= n; at += sizeof(int32_t)) {
        int32_t id;
        memcpy(&id, bytes + at, sizeof id);
        detokenizer_push(&d, id, &p->answer);
    }
    detokenizer_end(&d, &p->answer);
    p->ns = now_ns() - begin;
    return OK;
}

/* The template is kept while its source stays the same. */
static Status take_template(Peer *p, const json_t *question, Error *err)
{
    const json_t *source = json_object_get(question, "source");
    const char *text = json_string_value(source);
    if (!text) return error_set(err, ERR_INPUT, "the question has no source");
    if (p->template && strcmp(p->source, text) == 0) return OK;
    chat_template_close(p->template);
    mem_free(p->source);
    p->template = NULL;
    p->source = mem_strdup(text);
    Status status = chat_template_parse(&p->template, text, json_string_length(source), err);
    const char *name;
    const json_t *token;
    json_object_foreach(json_object_get(question, "tokens"), name, token) {
        if (status == OK) chat_template_set_token(p->template, name, json_string_value(token));
    }
    return status;
}

static Status render(Peer *p, const char *text, size_t n, Error *err)
{
    json_t *question;
    Status status = json_parse(&question, text, n, "the question", err);
    if (status != OK) return status;
    status = take_template(p, question, err);
    const json_t *tools = json_object_get(question, "tools");
    ChatInput input = { .messages = json_object_get(question, "messages"),
                        .tools = json_is_null(tools) ? NULL : tools,
                        .kwargs = json_object_get(question, "kwargs"),
                        .add_generation_prompt = json_is_true(json_object_get(question, "add_generation_prompt")) };
    uint64_t begin = now_ns();
    if (status == OK) status = chat_template_render(p->template, &input, &p->answer, err);
    p->ns = now_ns() - begin;
    json_decref(question);
    return status;
}

static Status answer(Peer *p, char kind, const char *body, size_t n, Error *err)
{
    if (kind == 'O') return open_tokenizer(p, body, err);
    if (kind == 'T') return render(p, body, n, err);
    if (!p->tokenizer) return error_set(err, ERR_INPUT, "no tokenizer is open");
    if (kind == 'D') return decode(p, body, n);
    return encode(p, body, n, kind == 'P', err);
}

static bool write_answer(Peer *p, Status status, const Error *err)
{
    if (status != OK) {
        buf_clear(&p->answer);
        buf_text(&p->answer, err->text);
    }
    uint8_t failed = status != OK;
    uint32_t n = (uint32_t)p->answer.len;
    return fwrite(&failed, 1, 1, stdout) == 1 && fwrite(&p->ns, sizeof p->ns, 1, stdout) == 1 &&
           fwrite(&n, sizeof n, 1, stdout) == 1 && (n == 0 || fwrite(p->answer.data, n, 1, stdout) == 1) &&
           fflush(stdout) == 0;
}

int main(int argc, char **argv)
{
    Peer p = { .dir = argc > 1 ? argv[1] : "." };
    char kind, *body = NULL;
    uint32_t n;
    buf_init(&p.answer, MAX_ANSWER_BYTES);
    for (bool ok = true; ok && fread(&kind, 1, 1, stdin) == 1 && fread(&n, sizeof n, 1, stdin) == 1;) {
        char *more = mem_realloc(body, (size_t)n + 1);
        if (!more) break;
        body = more;
        body[n] = '\0';
        Error err = { 0 };
        buf_clear(&p.answer);
        p.ns = 0;
        ok = (n == 0 || fread(body, n, 1, stdin) == 1) && write_answer(&p, answer(&p, kind, body, n, &err), &err);
    }
    mem_free(body);
    mem_free(p.ids);
    mem_free(p.source);
    chat_template_close(p.template);
    tokenizer_scratch_close(p.scratch);
    tokenizer_close(p.tokenizer);
    buf_free(&p.answer);
    return 0;
}
