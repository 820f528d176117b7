/* tandem tokenize: ids of a text as a JSON list, or with --json an object with the pieces. */
#include "cli/command.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

static void print_object(const Tokenizer *t, const int32_t *ids, int64_t n)
{
    Buf b;
    buf_init(&b, SIZE_MAX);
    buf_printf(&b, "{\"n_tokens\": %lld, \"token_ids\": [", (long long)n);
    for (int64_t i = 0; i < n; i++) buf_printf(&b, "%s%d", i ? ", " : "", ids[i]);
    buf_text(&b, "], \"tokens\": [");
    for (int64_t i = 0; i < n; i++) {
        Str piece = tokenizer_token_bytes(t, ids[i], NULL);
        if (i) buf_text(&b, ", ");
        buf_json_string(&b, piece.data, piece.len);
    }
    buf_text(&b, "]}\n");
    fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
}

Status command_tokenize(const Options *o, Error *err)
{
    if (!o->prompt) return error_set(err, ERR_USAGE, "which text? tandem tokenize MODEL -p TEXT");
    char dir[4096], cache[4096];
    Tokenizer *t = NULL;
    TokenizerScratch *scratch = NULL;
    int32_t *ids = NULL;
    int64_t n = 0, capacity = 0;
    tokenizer_default_cache_dir(cache, sizeof cache);
    Status s = model_find(o->model, dir, sizeof dir, err);
    if (!s) s = tokenizer_open(&t, dir, cache[0] ? cache : NULL, err);
    if (!s) s = tokenizer_scratch_open(&scratch, t, err);
    if (!s) s = tokenizer_encode(t, scratch, o->prompt, strlen(o->prompt), false, INT32_MAX, &ids, &n, &capacity, err);
    if (!s && o->json) print_object(t, ids, n);
    if (!s && !o->json) {
        putchar('[');
        for (int64_t i = 0; i < n; i++) printf("%s%d", i ? ", " : "", ids[i]);
        puts("]");
    }
    mem_free(ids);
    tokenizer_scratch_close(scratch);
    tokenizer_close(t);
    return s;
}
