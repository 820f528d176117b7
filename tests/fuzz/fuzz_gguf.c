/* GGUF files: the container, its metadata by every getter, the tokenizer and the chat template inside. Whatever opens keeps
 * its promises: tensors lie in the file, apart, and are found by name. */
#include "base/memory.h"
#include "fuzz/fuzz.h"
#include "tensor/gguf.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <math.h>

static void read_tensors(const Gguf *g)
{
    Error err = { .status = OK };
    uint64_t end = 0;
    for (int i = 0; i < gguf_count(g); i++) {
        const GgufTensor *t = gguf_at(g, i);
        char last;
        CHECK(gguf_find(g, t->name) == t);
        CHECK(t->offset >= end && t->bytes > 0);
        CHECK(gguf_read(g, t->part, t->offset + t->bytes - 1, &last, 1, &err) == OK);
        end = t->offset + t->bytes;
    }
}

static void read_keys(const Gguf *g)
{
    static const char *const keys[] = { "general.architecture", "general.alignment", "u8", "i8", "u16", "i16", "f32", "f64", "bool",
                                        "u64", "i64", "ints", "tokenizer.ggml.tokens", "absent" };
    for (int i = 0; i < COUNT(keys); i++) {
        Error err = { .status = OK };
        Str text = { 0 };
        GgufArray a = { 0 };
        int64_t whole;
        double real;
        bool truth;
        gguf_get_int(g, keys[i], INT64_MIN, INT64_MAX, &whole, &err);
        gguf_get_int(g, keys[i], 10, 20, &whole, &err);
        gguf_get_double(g, keys[i], -INFINITY, INFINITY, &real, &err);
        gguf_get_bool(g, keys[i], &truth, &err);
        gguf_get_string(g, keys[i], &text, &err);
        gguf_get_array(g, keys[i], &a, &err);
        for (uint64_t k = 0; k <= a.n && k < 100; k++) gguf_array_int(&a, k, &whole);
        size_t n = text.len;
        for (GgufTexts walk = gguf_texts(&a); gguf_next_text(&walk, &text);) n += text.len + (text.len ? (size_t)text.data[0] : 0);
        CHECK(gguf_has(g, keys[i]) || n == 0);
    }
}

static void use_tokenizer(const char *path)
{
    static const char probe[] = "<|im_start|>a ab\n1\xc3\xa9 '";
    Error err = { .status = OK };
    Tokenizer *t;
    TokenizerScratch *scratch = NULL;
    int32_t *ids = NULL;
    int64_t n = 0, capacity = 0;
    if (tokenizer_open(&t, path, NULL, &err) != OK) return;
    if (tokenizer_scratch_open(&scratch, t, &err) == OK)
        tokenizer_encode(t, scratch, probe, sizeof probe - 1, false, 1000, &ids, &n, &capacity, &err);
    for (int64_t i = 0; i < n; i++) CHECK(ids[i] >= 0 && ids[i] < tokenizer_vocab_size(t));
    mem_free(ids);
    tokenizer_scratch_close(scratch);
    tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Error err = { .status = OK };
    Gguf *g;
    ChatTemplate *chat;
    const char *path = scratch_file("a.gguf", data, n);
    Status s = gguf_open(&g, path, &err);
    CHECK(s == err.status && (s == OK) == (g != NULL));
    if (s) return 0;
    read_tensors(g);
    read_keys(g);
    gguf_close(g);
    use_tokenizer(path);
    if (chat_template_open(&chat, path, &err) == OK) chat_template_close(chat);
    return 0;
}
