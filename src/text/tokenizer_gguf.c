/* The tokenizer inside a GGUF file, written as the tokenizer.json that it was made from: one compiler reads both.
 *
 * The file names its way of cutting text ("tokenizer.ggml.pre") instead of stating it; the table below says what the
 * names mean (docs/spec/quantization.md 4.3, models.md 6.3). A name that is not in it is refused: nearly right ids are
 * worse than none. Where the file carries its tokenizer.json whole, that is taken. */
#include "text/tokenizer_impl.h"
#include "base/memory.h"
#include "tensor/gguf.h"

enum { MAX_JSON_BYTES = 256 << 20 };

/* ---- ways of cutting ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL
#define QWEN35 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL
#define LLAMA3 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"

typedef struct Way {
    const char *pre;
    const char *patterns[4]; /* one after the other; each cuts the pieces of the one before */
    bool        nfc, ignore_merges;
} Way;

static const Way ways[] = {
    { "default", { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" }, false, false },
    { "gpt-2", { GPT2 "|\\s+" }, false, false },
    { "smollm", { "\\p{N}", GPT2 "|\\s+" }, false, false },
    { "llama-bpe", { LLAMA3 }, false, true },
    { "llama3", { LLAMA3 }, false, true },
    { "llama-v3", { LLAMA3 }, false, true },
    { "qwen2", { QWEN2 }, true, false },
    { "qwen35", { QWEN35 }, true, false },
};

static Status find_way(const Way **out, const Gguf *g, Error *err)
{
    Str model = STR("none"), pre = STR("default");
    Status s = gguf_get_string(g, "tokenizer.ggml.model", &model, err);
    if (!s) s = gguf_get_string(g, "tokenizer.ggml.pre", &pre, err);
    if (s) return s;
    if (!str_equal(model, STR("gpt2")))
        return error_set(err, ERR_UNSUPPORTED, "%s holds a tokenizer of the kind \"%.*s\"; only \"gpt2\" is supported",
                         gguf_path(g), (int)(model.len < 60 ? model.len : 60), model.data);
    for (int i = 0; i < COUNT(ways); i++) {
        if (!str_equal(pre, str_of(ways[i].pre))) continue;
        *out = &ways[i];
        return OK;
    }
    return error_set(err, ERR_UNSUPPORTED, "%s asks for the pre-tokenizer \"%.*s\", which is not supported",
                     gguf_path(g), (int)(pre.len < 60 ? pre.len : 60), pre.data);
}

static void put_way(Buf *json, const Way *way)
{
    buf_text(json, way->nfc ? "\"normalizer\":{\"type\":\"NFC\"}," : "\"normalizer\":null,");
    buf_text(json, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < COUNT(way->patterns) && way->patterns[i]; i++) {
        buf_text(json, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":");
        buf_json_string(json, way->patterns[i], strlen(way->patterns[i]));
        buf_text(json, "}},");
    }
    buf_text(json, "{\"type\":\"ByteLevel\",\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},");
}

/* ---- tokens ---- */

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

/* Kind of token i; files without kinds have normal tokens only. */
static int64_t type_of_token(const GgufArray *types, uint64_t i)
{
    int64_t type = TYPE_NORMAL;
    gguf_array_int(types, i, &type);
    return type;
}

static bool is_added(int64_t type)
{
    return type == TYPE_CONTROL || type == TYPE_USER_DEFINED || type == TYPE_UNKNOWN;
}

static void put_added(Buf *json, const GgufArray *tokens, const GgufArray *types)
{
    GgufTexts walk = gguf_texts(tokens);
    const char *comma = "";
    Str text;
    buf_text(json, "\"added_tokens\":[");
    for (uint64_t i = 0; gguf_next_text(&walk, &text); i++) {
        int64_t type = type_of_token(types, i);
        if (!is_added(type) || text.len == 0) continue;
        buf_printf(json, "%s{\"id\":%llu,\"special\":%s,\"content\":", comma, (unsigned long long)i,
                   type == TYPE_USER_DEFINED ? "false" : "true");
        buf_json_string(json, text.data, text.len);
        buf_text(json, "}");
        comma = ",";
    }
    buf_text(json, "],");
}

/* Words: what merges can make. Tokens that fill holes in the vocabulary are left out: no text gives them. */
static void put_vocab(Buf *json, const GgufArray *tokens, const GgufArray *types)
{
    GgufTexts walk = gguf_texts(tokens);
    const char *comma = "";
    Str text;
    buf_text(json, "\"vocab\":{");
    for (uint64_t i = 0; gguf_next_text(&walk, &text); i++) {
        int64_t type = type_of_token(types, i);
        if (is_added(type) || type == TYPE_UNUSED) continue;
        buf_text(json, comma);
        buf_json_string(json, text.data, text.len);
        buf_printf(json, ":%llu", (unsigned long long)i);
        comma = ",";
    }
    buf_text(json, "},");
}

static void put_merges(Buf *json, const GgufArray *merges)
{
    GgufTexts walk = gguf_texts(merges);
    const char *comma = "";
    Str text;
    buf_text(json, "\"merges\":[");
    while (gguf_next_text(&walk, &text)) {
        buf_text(json, comma);
        buf_json_string(json, text.data, text.len);
        comma = ",";
    }
    buf_text(json, "]");
}

static Status write_json(Buf *json, const Gguf *g, Error *err)
{
    const Way *way = NULL;
    GgufArray tokens = { 0 }, types = { 0 }, merges = { 0 };
    Status s = find_way(&way, g, err);
    if (!s) s = gguf_get_array(g, "tokenizer.ggml.tokens", &tokens, err);
    if (!s) s = gguf_get_array(g, "tokenizer.ggml.token_type", &types, err);
    if (!s) s = gguf_get_array(g, "tokenizer.ggml.merges", &merges, err);
    if (s) return s;
    if (tokens.type != GGUF_STRING || merges.type != GGUF_STRING || tokens.n == 0 || tokens.n > MAX_TOKEN_ID)
        return error_set(err, ERR_INPUT, "%s has no lists of tokens and merges", gguf_path(g));
    buf_text(json, "{");
    put_added(json, &tokens, &types);
    put_way(json, way);
    buf_printf(json, "\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,", way->ignore_merges ? "true" : "false");
    put_vocab(json, &tokens, &types);
    put_merges(json, &merges);
    buf_text(json, "}}");
    return OK;
}

Status gguf_tokenizer_json(char **json, size_t *n, const char *path, Error *err)
{
    Gguf *g;
    Buf buf;
    Str whole = { 0 };
    *json = NULL;
    Status s = gguf_open(&g, path, err);
    if (s) return s;
    buf_init(&buf, MAX_JSON_BYTES);
    s = gguf_get_string(g, "tokenizer.huggingface.json", &whole, err);
    if (!s && whole.len) buf_append(&buf, whole.data, whole.len);
    else if (!s) s = write_json(&buf, g, err);
    gguf_close(g);
    if (!s && buf.failed) s = error_set(err, ERR_NOMEM, "no memory for the tokenizer in %s", path);
    if (s) {
        buf_free(&buf);
        return s;
    }
    *json = buf.data;
    *n = buf.len;
    return OK;
}

/* ---- single texts ---- */

static Status copy_text(char **out, Str text, const char *path, Error *err)
{
    *out = mem_strndup(text.data, text.len);
    return *out ? OK : error_set(err, ERR_NOMEM, "no memory to read %s", path);
}

static Status copy_token(char **out, const Gguf *g, int64_t id, Error *err)
{
    GgufArray tokens = { 0 };
    Str text;
    Status s = gguf_get_array(g, "tokenizer.ggml.tokens", &tokens, err);
    if (s) return s;
    GgufTexts walk = gguf_texts(&tokens);
    for (int64_t i = 0; gguf_next_text(&walk, &text); i++)
        if (i == id) return copy_text(out, text, gguf_path(g), err);
    return error_set(err, ERR_INPUT, "%s names a special token %lld that it does not have", gguf_path(g),
                     (long long)id);
}

Status gguf_special_tokens(char **texts, const char *const *names, int n, const char *path, Error *err)
{
    static const struct {
        const char *name, *key;
    } keys[] = { { "bos_token", "tokenizer.ggml.bos_token_id" },
                 { "eos_token", "tokenizer.ggml.eos_token_id" },
                 { "pad_token", "tokenizer.ggml.padding_token_id" },
                 { "unk_token", "tokenizer.ggml.unknown_token_id" } };
    Gguf *g;
    Status s = gguf_open(&g, path, err);
    for (int i = 0; !s && i < n; i++) {
        for (int k = 0; !s && k < COUNT(keys); k++) {
            int64_t id = -1;
            if (strcmp(names[i], keys[k].name) != 0) continue;
            s = gguf_get_int(g, keys[k].key, 0, MAX_TOKEN_ID, &id, err);
            if (!s && id >= 0) s = copy_token(&texts[i], g, id, err);
        }
    }
    gguf_close(g);
    return s;
}

Status gguf_chat_template(char **source, size_t *n, const char *path, Error *err)
{
    Gguf *g;
    Str text = { 0 };
    Status s = gguf_open(&g, path, err);
    if (!s) s = gguf_get_string(g, "tokenizer.chat_template", &text, err);
    if (!s && !text.data) s = error_set(err, ERR_NOT_FOUND, "the model in %s has no chat template", path);
    if (!s) s = copy_text(source, text, path, err);
    if (!s) *n = text.len;
    gguf_close(g);
    return s;
}
