/* The face of the tokenizer: opens the parts and leads a text through them.
 *
 *     text ─ added tokens ─> pieces ─ NFC ─> pieces ─ normalised added tokens ─ pre-tokenizer ─> words ─ BPE ─> ids
 *
 * Between two added tokens everything is on its own: no rule looks over one. */
#include "text/tokenizer_impl.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "tensor/gguf.h"

#include <limits.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

static const char *const special_names[] = { "bos_token", "eos_token", "pad_token", "unk_token" };

struct Tokenizer {
    char         *image; /* what vocab borrows from */
    Vocab         vocab;
    Bpe           bpe;
    AddedTokens   added, added_normalized;
    PreTokenizer *pretokenizer;
    char         *special[COUNT(special_names)]; /* owned, NULL = absent */
};

struct TokenizerScratch {
    PreTokenizeWork *pretokenize;
    BpeWork          bpe;
    NfcWork          nfc;
    Buf              normalized;
};

/* A special token is given as text or as an object with content. */
static Status read_special_tokens(Tokenizer *t, const char *dir, Error *err)
{
    char path[PATH_MAX];
    json_t *config;
    if (gguf_is_path(dir)) return gguf_special_tokens(t->special, special_names, COUNT(special_names), dir, err);
    Status status = path_join(path, sizeof path, dir, "tokenizer_config.json", err);
    if (status != OK || !file_exists(path)) return status;
    status = json_parse_file(&config, path, MAX_CONFIG_BYTES, err);
    if (status != OK) return status;
    for (int i = 0; i < COUNT(special_names); i++) {
        const json_t *value = json_object_get(config, special_names[i]);
        if (json_is_object(value)) value = json_object_get(value, "content");
        if (!json_is_string(value)) continue;
        t->special[i] = mem_strdup(json_string_value(value));
        if (!t->special[i]) status = error_set(err, ERR_NOMEM, "no memory to read %s", path);
    }
    json_decref(config);
    return status;
}

static Status open_parts(Tokenizer *t, const char *dir, const char *cache_dir, Error *err)
{
    char path[PATH_MAX];
    size_t n;
    Status s = path_join(path, sizeof path, dir, "tokenizer.json", err);
    const char *source = gguf_is_path(dir) ? dir : path;
    if (!s) s = cache_take_image(&t->image, &n, source, cache_dir, err);
    if (!s) s = image_open(&t->vocab, t->image, n, source, err);
    if (!s) bpe_open(&t->bpe, &t->vocab);
    if (!s) s = added_tokens_open(&t->added, &t->vocab, TOKEN_ADDED | TOKEN_NORMALIZED, TOKEN_ADDED, err);
    if (!s) s = added_tokens_open(&t->added_normalized, &t->vocab, TOKEN_ADDED | TOKEN_NORMALIZED,
                                  TOKEN_ADDED | TOKEN_NORMALIZED, err);
    if (!s) s = pretokenizer_open(&t->pretokenizer, &t->vocab, err);
    if (!s) s = read_special_tokens(t, dir, err);
    return s;
}

Status tokenizer_open(Tokenizer **out, const char *dir, const char *cache_dir, Error *err)
{
    *out = NULL;
    Tokenizer *t = mem_alloc(sizeof *t);
    if (!t) return error_set(err, ERR_NOMEM, "no memory to open the tokenizer in %s", dir);
    Status status = open_parts(t, dir, cache_dir, err);
    if (status != OK) {
        tokenizer_close(t);
        return status;
    }
    *out = t;
    return OK;
}

void tokenizer_close(Tokenizer *t)
{
    if (!t) return;
    for (int i = 0; i < COUNT(special_names); i++) mem_free(t->special[i]);
    pretokenizer_close(t->pretokenizer);
    added_tokens_close(&t->added_normalized);
    added_tokens_close(&t->added);
    mem_free(t->image);
    mem_free(t);
}

Status tokenizer_scratch_open(TokenizerScratch **out, const Tokenizer *t, Error *err)
{
    *out = NULL;
    TokenizerScratch *s = mem_alloc(sizeof *s);
    if (!s) return error_set(err, ERR_NOMEM, "no memory for the tokenizer's scratch");
    buf_init(&s->normalized, SIZE_MAX);
    Status status = pretokenize_work_open(&s->pretokenize, t->pretokenizer, err);
    if (status != OK) {
        tokenizer_scratch_close(s);
        return status;
    }
    *out = s;
    return OK;
}

void tokenizer_scratch_close(TokenizerScratch *s)
{
    if (!s) return;
    pretokenize_work_close(s->pretokenize);
    bpe_work_free(&s->bpe);
    nfc_work_free(&s->nfc);
    buf_free(&s->normalized);
    mem_free(s);
}

/* ---- encoding ---- */

typedef struct Encoding {
    const Tokenizer  *t;
    TokenizerScratch *s;
    bool              plain;
    IdList            ids;
    Error            *err;
} Encoding;

static void encode_word(void *user, const char *word, size_t n)
{
    Encoding *e = user;
    bpe_encode(&e->t->bpe, &e->s->bpe, word, n, &e->ids);
}

typedef Status (*PieceSink)(Encoding *e, const char *piece, size_t n);

/* Gives the pieces between the added tokens to sink and takes the tokens themselves. */
static Status split_by(Encoding *e, const AddedTokens *added, const char *text, size_t n, PieceSink sink)
{
    size_t from = 0, at, len;
    while (from < n && e->ids.status == OK) {
        int32_t id = e->plain ? -1 : added_tokens_find(added, text, n, from, &at, &len);
        if (id < 0) at = n;
        if (at > from) {
            Status status = sink(e, text + from, at - from);
            if (status != OK) return status;
        }
        if (id < 0) return OK;
        id_list_push(&e->ids, id);
        from = at + len;
    }
    return OK;
}

static Status encode_normalized_piece(Encoding *e, const char *piece, size_t n)
{
    return pretokenize(e->t->pretokenizer, e->s->pretokenize, piece, n, encode_word, e, e->err);
}

static Status encode_raw_piece(Encoding *e, const char *piece, size_t n)
{
    if (e->t->vocab.nfc && !nfc_is_obvious(piece, n)) {
        buf_clear(&e->s->normalized);
        Status status = nfc_append(&e->s->normalized, piece, n, &e->s->nfc, e->err);
        if (status != OK) return status;
        piece = e->s->normalized.data;
        n = e->s->normalized.len;
    }
    return split_by(e, &e->t->added_normalized, piece, n, encode_normalized_piece);
}

/* Memory that one unusually long text made the scratch take is given back. */
static void scratch_trim(TokenizerScratch *s)
{
    enum { KEEP_BYTES = 1 << 20 };
    bpe_work_trim(&s->bpe);
    pretokenize_work_trim(s->pretokenize);
    if (s->nfc.capacity > KEEP_BYTES / sizeof *s->nfc.codepoints) nfc_work_free(&s->nfc);
    if (s->normalized.capacity > KEEP_BYTES) buf_free(&s->normalized);
}

static Status check_text(const char *text, size_t n, Error *err)
{
    size_t valid = utf8_valid_bytes(text, n);
    if (valid < n) {
        return error_set(err, ERR_INPUT, "the text is not valid UTF-8: byte 0x%02x at offset %zu", (uint8_t)text[valid],
                         valid);
    }
    if (n > INT32_MAX / 2) return error_set(err, ERR_INPUT, "the text is longer than %d bytes", INT32_MAX / 2);
    return OK;
}

Status tokenizer_encode(const Tokenizer *t, TokenizerScratch *s, const char *text, size_t n, bool plain,
                        int64_t max_tokens, int32_t **ids, int64_t *n_ids, int64_t *capacity, Error *err)
{
    Status status = check_text(text, n, err);
    if (status != OK) return status;
    Encoding e = { .t = t, .s = s, .plain = plain, .err = err,
                   .ids = { .ids = *ids, .n = *n_ids, .capacity = *capacity, .max = max_tokens } };
    status = split_by(&e, &t->added, text, n, encode_raw_piece);
    scratch_trim(s);
    *ids = e.ids.ids;
    *capacity = e.ids.capacity;
    if (status != OK) return status;
    if (e.ids.status == ERR_INPUT) {
        return error_set(err, ERR_INPUT, "the prompt is longer than %lld tokens", (long long)max_tokens);
    }
    if (e.ids.status != OK) return error_set(err, e.ids.status, "no memory to tokenize %zu bytes", n);
    *n_ids = e.ids.n;
    return OK;
}

/* ---- looking up ---- */

Str tokenizer_token_bytes(const Tokenizer *t, int32_t id, bool *special)
{
    bool known = id >= 0 && id < t->vocab.n_ids;
    if (special) *special = known && t->vocab.flags[id] & TOKEN_SPECIAL;
    return known ? vocab_bytes(&t->vocab, id) : (Str){ "", 0 };
}

int32_t tokenizer_vocab_size(const Tokenizer *t)
{
    return t->vocab.n_ids;
}

int32_t tokenizer_find(const Tokenizer *t, const char *token)
{
    size_t n = strlen(token), at, len;
    const AddedTokens *both[] = { &t->added, &t->added_normalized };
    for (int i = 0; i < COUNT(both); i++) {
        int32_t id = added_tokens_find(both[i], token, n, 0, &at, &len);
        if (id >= 0 && at == 0 && len == n) return id;
    }
    return bpe_find_word(&t->bpe, token, n);
}

const char *tokenizer_special(const Tokenizer *t, const char *name)
{
    for (int i = 0; i < COUNT(special_names); i++) {
        if (strcmp(name, special_names[i]) == 0 && t->special[i]) return t->special[i];
    }
    return "";
}
