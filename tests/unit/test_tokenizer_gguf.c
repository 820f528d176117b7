/* The tokenizer and template inside a GGUF file: nano's tokenizer.json written as GGUF metadata gives the ids of nano's
 * tokenizer.json, every way of cutting text gives the pieces it stands for, and what is missing or unknown is named. */
#include "unit/text_fixture.h"

#include "support/gguf_writer.h"
#include "support/starve.h"
#include "text/chat_template.h"
#include "unit/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_dir(void **state)
{
    static TempDir t;
    temp_dir_open(&t);
    *state = &t;
    return 0;
}

static int close_dir(void **state)
{
    temp_dir_close(*state);
    return 0;
}

static const char *finish(const TempDir *dir, GgufWriter *w)
{
    Buf file;
    gguf_writer_finish(w, &file);
    gguf_writer_close(w);
    unlink(temp_path(dir, "model.gguf"));
    const char *path = temp_write(dir, "model.gguf", file.data, file.len);
    buf_free(&file);
    return path;
}

/* --- nano as GGUF --------------------------------------------------------------------------------------------------- */

enum { MAX_TOKENS = 8192 };

typedef struct Lists {
    const char *token[MAX_TOKENS], *merge[MAX_TOKENS];
    int32_t     type[MAX_TOKENS];
    char       *owned[MAX_TOKENS]; /* merges that were pairs */
    int         n_tokens, n_merges;
} Lists;

static void take_token(Lists *l, const json_t *id, const char *text, int32_t type)
{
    int64_t i = json_integer_value(id);
    assert_true(i < MAX_TOKENS);
    l->token[i] = text;
    l->type[i] = type;
    if (i >= l->n_tokens) l->n_tokens = (int)i + 1;
}

static void take_merge(Lists *l, const json_t *merge)
{
    char *text;
    assert_true(l->n_merges < MAX_TOKENS);
    if (json_is_string(merge)) {
        l->merge[l->n_merges++] = json_string_value(merge);
        return;
    }
    int n = asprintf(&text, "%s %s", json_string_value(json_array_get(merge, 0)), json_string_value(json_array_get(merge, 1)));
    assert_true(n > 0);
    l->owned[l->n_merges] = text;
    l->merge[l->n_merges++] = text;
}

static void take_lists(Lists *l, const json_t *tokenizer)
{
    const json_t *model = json_object_get(tokenizer, "model");
    const char *text;
    json_t *value;
    size_t i;
    memset(l, 0, sizeof *l);
    json_object_foreach(json_object_get(model, "vocab"), text, value) take_token(l, value, text, 1);
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, value) {
        bool special = json_is_true(json_object_get(value, "special"));
        take_token(l, json_object_get(value, "id"), json_string_value(json_object_get(value, "content")), special ? 3 : 4);
    }
    json_array_foreach(json_object_get(model, "merges"), i, value) take_merge(l, value);
    for (int k = 0; k < l->n_tokens; k++) {
        if (l->token[k]) continue;
        l->token[k] = "[PAD]"; /* as converters fill holes; one text for all, which only tokens out of use may share */
        l->type[k] = 5;
    }
}

static void put_lists(GgufWriter *w, const Lists *l)
{
    gguf_put_texts(w, "tokenizer.ggml.tokens", l->token, l->n_tokens);
    gguf_put_ints(w, "tokenizer.ggml.token_type", l->type, l->n_tokens);
    gguf_put_texts(w, "tokenizer.ggml.merges", l->merge, l->n_merges);
}

static void free_lists(Lists *l)
{
    for (int i = 0; i < l->n_merges; i++) free(l->owned[i]);
}

static int32_t id_of(const Lists *l, const char *text)
{
    for (int i = 0; i < l->n_tokens; i++)
        if (strcmp(l->token[i], text) == 0) return i;
    fail_msg("no token %s", text);
    return -1;
}

/* nano's pre-tokenizer is Qwen2's. */
static const char *write_nano(const TempDir *dir, const char *pre)
{
    static Lists l;
    json_t *tokenizer = fixture_read("models/nano/tokenizer.json");
    GgufWriter w;
    take_lists(&l, tokenizer);
    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "gpt2");
    if (pre) gguf_put_text(&w, "tokenizer.ggml.pre", pre);
    put_lists(&w, &l);
    gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", (uint32_t)id_of(&l, "<|im_end|>"));
    gguf_put_u32(&w, "tokenizer.ggml.padding_token_id", (uint32_t)id_of(&l, "<|endoftext|>"));
    gguf_put_text(&w, "tokenizer.chat_template", "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ eos_token }}");
    free_lists(&l);
    json_decref(tokenizer);
    return finish(dir, &w);
}

static void assert_same_ids(const Tokenizer *a, const Tokenizer *b, const char *text, size_t n)
{
    Error err = { 0 };
    Ids x = { 0 }, y = { 0 };
    Status s = encode(a, text, n, false, INT32_MAX, &x, &err);
    assert_int_equal(encode(b, text, n, false, INT32_MAX, &y, &err), s);
    if (x.n != y.n || (x.n && memcmp(x.ids, y.ids, (size_t)x.n * sizeof *x.ids) != 0))
        fail_msg("other ids for \"%.*s\"", (int)n, text);
    ids_free(&x);
    ids_free(&y);
}

static void nano_has_the_same_ids(void **state)
{
    Tokenizer *json = tokenizer_in(source_tree("models/nano"), NULL);
    Tokenizer *gguf = tokenizer_in(write_nano(*state, "qwen2"), NULL);
    assert_int_equal(tokenizer_vocab_size(gguf), tokenizer_vocab_size(json));
    for (int32_t id = 0; id < tokenizer_vocab_size(json); id++) {
        bool special_a, special_b;
        assert_true(str_equal(tokenizer_token_bytes(json, id, &special_a), tokenizer_token_bytes(gguf, id, &special_b)));
        assert_int_equal(special_a, special_b);
    }
    json_t *traces = fixture_read("tests/data/golden/nano_traces.json"), *trace;
    size_t i;
    json_array_foreach(json_object_get(traces, "plain"), i, trace) {
        const json_t *prompt = json_object_get(trace, "prompt");
        assert_same_ids(json, gguf, json_string_value(prompt), json_string_length(prompt));
    }
    json_decref(traces);

    static const char *const bits[] = { "a", " the", "  ", "\n\n", "don't", "'LL", "123", "<|im_start|>", "<think>", "</think>",
                                        "é", "e\xcc\x81", "日本", "\t", "<|im_", "!?", "_x" };
    Random r = { 11 };
    for (int k = 0; k < 300; k++) {
        Buf text;
        buf_init(&text, 1 << 16);
        for (int n = random_below(&r, 40); n >= 0; n--) buf_text(&text, bits[random_below(&r, COUNT(bits))]);
        assert_same_ids(json, gguf, text.data, text.len);
        buf_free(&text);
    }
    assert_string_equal(tokenizer_special(gguf, "eos_token"), "<|im_end|>");
    assert_string_equal(tokenizer_special(gguf, "pad_token"), "<|endoftext|>");
    assert_string_equal(tokenizer_special(gguf, "bos_token"), "");
    tokenizer_close(json);
    tokenizer_close(gguf);
}

static void it_is_kept_in_the_cache(void **state)
{
    const TempDir *dir = *state;
    const char *path = write_nano(dir, "qwen2");
    int before = temp_count(dir);
    Tokenizer *first = tokenizer_in(path, dir->path);
    assert_int_equal(temp_count(dir), before + 1);
    Tokenizer *second = tokenizer_in(path, dir->path);
    assert_same_ids(first, second, "the same words", 14);
    tokenizer_close(first);
    tokenizer_close(second);
}

static void the_template_comes_along(void **state)
{
    ChatTemplate *t;
    Error err = { 0 };
    Buf out;
    if (chat_template_open(&t, write_nano(*state, "qwen2"), &err) != OK) fail_msg("%s", err.text);
    chat_template_set_token(t, "eos_token", "<end>");
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hello");
    buf_init(&out, 1 << 16);
    assert_int_equal(chat_template_render(t, &(ChatInput){ .messages = messages }, &out, &err), OK);
    assert_string_equal(out.data, "[user] hello<end>");
    buf_free(&out);
    json_decref(messages);
    chat_template_close(t);
}

/* --- ways of cutting ------------------------------------------------------------------------------------------------ */

/* With a vocabulary of single bytes and one merge, the two characters that it joins become one id exactly when no cut lies
 * between them. */
static bool joins(const TempDir *dir, const char *pre, const char *text, const char *left, const char *right)
{
    static const char *token[260];
    static char single[256][4];
    char merge[32], joined[32];
    GgufWriter w;
    int n = 0, next = 256;
    for (int b = 0; b < 256; b++) { /* the byte map of models.md 6.2 */
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int c = itself ? b : next++;
        if (c < 128) snprintf(single[b], 4, "%c", c);
        else snprintf(single[b], 4, "%c%c", 0xC0 | c >> 6, 0x80 | (c & 63));
        token[n++] = single[b];
    }
    snprintf(joined, sizeof joined, "%s%s", left, right);
    snprintf(merge, sizeof merge, "%s %s", left, right);
    token[n++] = joined;
    const char *merges[] = { merge };
    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "gpt2");
    if (pre) gguf_put_text(&w, "tokenizer.ggml.pre", pre);
    gguf_put_texts(&w, "tokenizer.ggml.tokens", token, n);
    gguf_put_texts(&w, "tokenizer.ggml.merges", merges, 1);

    Error err = { 0 };
    Ids ids = { 0 };
    Tokenizer *t = tokenizer_in(finish(dir, &w), NULL);
    assert_int_equal(encode(t, text, strlen(text), false, INT32_MAX, &ids, &err), OK);
    bool found = false;
    for (int64_t i = 0; i < ids.n; i++) found |= ids.ids[i] == 256;
    ids_free(&ids);
    tokenizer_close(t);
    return found;
}

static void ways_of_cutting(void **state)
{
    static const struct {
        const char *pre, *text, *left, *right;
        bool        joins;
    } cases[] = {
        { "qwen2", "12", "1", "2", false },      { "llama-bpe", "12", "1", "2", true },
        { "llama-bpe", "1234", "3", "4", false }, { "llama3", "x123", "2", "3", true },
        { "smollm", "12", "1", "2", false },     { "gpt-2", "12", "1", "2", true },
        { "gpt-2", "1234", "3", "4", true },     { "default", "1234", "3", "4", false },
        { NULL, "1234", "3", "4", false },       { "default", "ab", "a", "b", true },
        { "default", "!ab", "!", "a", false },   { "qwen2", "!ab", "!", "a", true },
        { "gpt-2", "!ab", "!", "a", false },     { "smollm", "!ab", "!", "a", false },
        { "qwen2", "I'LL", "'", "L", true },     { "qwen2", "\n\n", "\xc4\x8a", "\xc4\x8a", true },
        /* a mark behind a letter: U+0947 begins with byte E0 */
        { "qwen35", "\xe0\xa4\x95\xe0\xa5\x87", "\xc4\xb7", "\xc3\xa0", true },
        { "qwen2", "\xe0\xa4\x95\xe0\xa5\x87", "\xc4\xb7", "\xc3\xa0", false },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        bool got = joins(*state, cases[i].pre, cases[i].text, cases[i].left, cases[i].right);
        if (got != cases[i].joins) fail_msg("case %d: %s cuts \"%s\" otherwise", i, cases[i].pre, cases[i].text);
    }
}

/* --- refused -------------------------------------------------------------------------------------------------------- */

static void expect_refused(const char *path, Status status, const char *says)
{
    Tokenizer *t;
    Error err = { 0 };
    Status s = tokenizer_open(&t, path, NULL, &err);
    if (s != status || t || !strstr(err.text, says)) fail_msg("%d, \"%s\", want \"%s\"", s, err.text, says);
}

static void what_is_missing_is_named(void **state)
{
    static const char *const words[] = { "a", "b", "ab" }, *const merges[] = { "a b" }, *const bad[] = { "a x" };
    static const int32_t types[] = { 1, 3, 1 };
    GgufWriter w;
    expect_refused(write_nano(*state, "tekken"), ERR_UNSUPPORTED, "pre-tokenizer \"tekken\"");

    gguf_writer_open(&w);
    expect_refused(finish(*state, &w), ERR_UNSUPPORTED, "kind \"none\"");

    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "llama");
    expect_refused(finish(*state, &w), ERR_UNSUPPORTED, "kind \"llama\"");

    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "gpt2");
    expect_refused(finish(*state, &w), ERR_INPUT, "no lists of tokens");

    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_put_texts(&w, "tokenizer.ggml.tokens", words, 3);
    gguf_put_texts(&w, "tokenizer.ggml.merges", bad, 1);
    expect_refused(finish(*state, &w), ERR_INPUT, "not in the vocabulary");

    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_put_texts(&w, "tokenizer.ggml.tokens", words, 3);
    gguf_put_texts(&w, "tokenizer.ggml.merges", merges, 1);
    gguf_put_ints(&w, "tokenizer.ggml.token_type", types, 3); /* b is added, so no merge can use it */
    expect_refused(finish(*state, &w), ERR_INPUT, "not in the vocabulary");

    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_put_texts(&w, "tokenizer.ggml.tokens", words, 3);
    gguf_put_texts(&w, "tokenizer.ggml.merges", merges, 1);
    gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 3);
    const char *path = finish(*state, &w);
    expect_refused(path, ERR_INPUT, "special token 3");
    ChatTemplate *t;
    Error err = { 0 };
    assert_int_equal(chat_template_open(&t, path, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "no chat template"));
}

static void a_whole_tokenizer_json_is_taken(void **state)
{
    GgufWriter w;
    char *text;
    size_t n;
    Error err = { 0 };
    assert_int_equal(file_read(source_tree("models/nano/tokenizer.json"), 1 << 24, &text, &n, &err), OK);
    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_put_text(&w, "tokenizer.ggml.pre", "nobody knows");
    gguf_put_text(&w, "tokenizer.huggingface.json", text);
    Tokenizer *json = tokenizer_in(source_tree("models/nano"), NULL), *gguf = tokenizer_in(finish(*state, &w), NULL);
    assert_same_ids(json, gguf, "<think>it's 12</think>", 22);
    tokenizer_close(json);
    tokenizer_close(gguf);
    mem_free(text);
}

static void starved(void **state)
{
    static const char *const words[] = { "a", "b", "ab", "<x>" }, *const merges[] = { "a b" };
    static const int32_t types[] = { 1, 1, 1, 3 };
    GgufWriter w;
    gguf_writer_open(&w);
    gguf_put_text(&w, "tokenizer.ggml.model", "gpt2");
    gguf_put_text(&w, "tokenizer.ggml.pre", "smollm");
    gguf_put_texts(&w, "tokenizer.ggml.tokens", words, 4);
    gguf_put_texts(&w, "tokenizer.ggml.merges", merges, 1);
    gguf_put_ints(&w, "tokenizer.ggml.token_type", types, 4);
    gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 3);
    gguf_put_text(&w, "tokenizer.chat_template", "{{ messages }}");
    const char *path = finish(*state, &w);
    Tokenizer *t;
    ChatTemplate *template;
    Error err = { 0 };
    Status status;
    STARVE(status, status = tokenizer_open(&t, path, NULL, &err), tokenizer_close(t));
    STARVE(status, status = chat_template_open(&template, path, &err), chat_template_close(template));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_has_the_same_ids),
        cmocka_unit_test(it_is_kept_in_the_cache),
        cmocka_unit_test(the_template_comes_along),
        cmocka_unit_test(ways_of_cutting),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(a_whole_tokenizer_json_is_taken),
        cmocka_unit_test(starved),
    };
    return cmocka_run_group_tests(tests, open_dir, close_dir);
}
