/* tokenizer.json to the image. Format: docs/spec/models.md section 6.1.
 *
 * Everything that decides about ids is read from the file, never guessed from the model's type, and what we do not do
 * is refused by name: a tokenizer that is nearly right is worse than none. */
#include "text/tokenizer_image_impl.h"
#include "text/tokenizer_tables_impl.h"
#include "base/json.h"
#include "base/memory.h"

enum { MAX_VOCAB_BYTES = 1 << 28 };

typedef struct Compiler {
    const char *what; /* the file's name, for messages */
    Tables      tables;
    int16_t     char_byte[512]; /* character of the byte map to its byte, -1 = none */
    int32_t     n_ids;
    Str        *tokens; /* [n_ids]; owned by token_text */
    uint8_t    *flags;  /* [n_ids] */
    Buf         token_text;
    size_t     *token_at; /* [n_ids] into token_text while it grows */
    bool        nfc, byte_level;
    int         n_steps;
    PreTokenizeStep steps[MAX_PRETOKENIZE_STEPS]; /* patterns borrowed from the JSON tree or constant */
    Error      *err;
} Compiler;

/* Digits asks another Unicode than \p{N} does: these came later. */
#define DIGIT "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]"

static const char GPT2_PATTERN[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static Status refuse(Compiler *c, const char *feature)
{
    return error_set(c->err, ERR_UNSUPPORTED, "%s asks for %s, which is not supported", c->what, feature);
}

static Status malformed(Compiler *c, const char *where)
{
    return error_set(c->err, ERR_INPUT, "%s is malformed: %s", c->what, where);
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static bool is_set(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

/* ---- tokens ---- */

/* Printable bytes stand for themselves; the other 68 become U+0100 and on, in order. */
static void fill_char_byte(Compiler *c)
{
    int next = 256;
    for (int i = 0; i < COUNT(c->char_byte); i++) c->char_byte[i] = -1;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        c->char_byte[itself ? b : next++] = (int16_t)b;
    }
}

/* Appends the bytes that a vocabulary entry stands for; false (and the entry as it is) when it holds a character from
 * outside the byte map. */
static bool append_mapped(Compiler *c, const char *entry, size_t n)
{
    size_t begin = c->token_text.len;
    const char *end = entry + n;
    for (const char *p = entry; p < end;) {
        uint32_t cp = utf8_read(&p);
        if (cp >= COUNT(c->char_byte) || c->char_byte[cp] < 0) {
            c->token_text.len = begin;
            buf_append(&c->token_text, entry, n);
            return false;
        }
        char byte = (char)c->char_byte[cp];
        buf_append(&c->token_text, &byte, 1);
    }
    return true;
}

static void note_id(Compiler *c, int64_t id)
{
    if (id >= c->n_ids) c->n_ids = (int32_t)id + 1;
}

static Status count_ids(Compiler *c, const json_t *added)
{
    json_t *token;
    size_t i;
    for (int32_t k = 0; k < c->tables.n_entries; k++) note_id(c, c->tables.entries[k].id);
    json_array_foreach(added, i, token) {
        const json_t *id = json_object_get(token, "id");
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value > MAX_TOKEN_ID) return malformed(c, "a token id is out of range");
        note_id(c, value);
    }
    return c->n_ids > 0 ? OK : malformed(c, "it has no tokens");
}

static Status read_vocab(Compiler *c)
{
    for (int32_t k = 0; k < c->tables.n_entries; k++) {
        Entry entry = c->tables.entries[k];
        if (c->flags[entry.id])
            return error_set(c->err, ERR_INPUT, "%s is malformed: two tokens have the id %d", c->what, (int)entry.id);
        size_t begin = c->token_text.len;
        bool mapped = append_mapped(c, entry.text.data, entry.text.len);
        c->token_at[entry.id] = begin;
        c->tokens[entry.id].len = c->token_text.len - begin;
        c->flags[entry.id] = TOKEN_KNOWN | (mapped ? TOKEN_WORD : 0);
    }
    return OK;
}

static Status read_added_token(Compiler *c, const json_t *token)
{
    const json_t *content = json_object_get(token, "content");
    if (!json_is_string(content)) return malformed(c, "an added token has no content");
    if (is_set(token, "lstrip") || is_set(token, "rstrip") || is_set(token, "single_word")) {
        return refuse(c, "an added token with lstrip, rstrip or single_word");
    }
    int32_t id = (int32_t)json_integer_value(json_object_get(token, "id"));
    c->token_at[id] = c->token_text.len;
    c->tokens[id].len = json_string_length(content);
    buf_append(&c->token_text, json_string_value(content), json_string_length(content));
    c->flags[id] |= TOKEN_KNOWN | TOKEN_ADDED;
    if (is_set(token, "special")) c->flags[id] |= TOKEN_SPECIAL;
    if (is_set(token, "normalized")) c->flags[id] |= TOKEN_NORMALIZED;
    return OK;
}

static Status read_tokens(Compiler *c, const json_t *root)
{
    const json_t *added = json_object_get(root, "added_tokens");
    Status status = count_ids(c, added);
    if (status != OK) return status;
    c->tokens = mem_alloc_array((size_t)c->n_ids, sizeof *c->tokens);
    c->flags = mem_alloc_array((size_t)c->n_ids, 1);
    c->token_at = mem_alloc_array((size_t)c->n_ids, sizeof *c->token_at);
    if (!c->tokens || !c->flags || !c->token_at) return error_set(c->err, ERR_NOMEM, "no memory to read %s", c->what);

    status = read_vocab(c);
    size_t i;
    json_t *token;
    json_array_foreach(added, i, token) {
        if (status == OK) status = read_added_token(c, token);
    }
    if (status == OK && c->token_text.failed) status = error_set(c->err, ERR_NOMEM, "no memory to read %s", c->what);
    for (int32_t id = 0; status == OK && id < c->n_ids; id++) {
        c->tokens[id].data = c->token_text.data ? c->token_text.data + c->token_at[id] : "";
    }
    return status;
}

/* ---- model, normaliser, pre-tokenizer, decoder ---- */

/* Bytes that well-formed UTF-8 never holds need no token. */
static bool misses_a_byte(const Compiler *c)
{
    bool have[256] = { false };
    for (int32_t id = 0; id < c->n_ids; id++) {
        if (c->flags[id] & TOKEN_WORD && c->tokens[id].len == 1) have[(uint8_t)c->tokens[id].data[0]] = true;
    }
    for (int b = 0; b < 0xF5; b++) {
        if (!have[b] && b != 0xC0 && b != 0xC1) return true;
    }
    return false;
}

static Status check_model(Compiler *c, const json_t *model)
{
    const char *type = type_of(model);
    if (!json_is_object(model)) return malformed(c, "it has no model");
    if (*type && strcmp(type, "BPE") != 0) {
        return error_set(c->err, ERR_UNSUPPORTED, "%s holds a %s model; only byte-level BPE is supported", c->what,
                         type);
    }
    if (!json_is_object(json_object_get(model, "vocab"))) return malformed(c, "its model has no vocab");
    if (!json_is_array(json_object_get(model, "merges"))) return malformed(c, "its model has no merges");
    const char *prefix = json_string_value(json_object_get(model, "continuing_subword_prefix"));
    const char *suffix = json_string_value(json_object_get(model, "end_of_word_suffix"));
    if (prefix && *prefix) return refuse(c, "continuing_subword_prefix");
    if (suffix && *suffix) return refuse(c, "end_of_word_suffix");
    if (is_set(model, "byte_fallback")) return refuse(c, "byte_fallback");
    if (json_has(model, "dropout") && json_number_value(json_object_get(model, "dropout")) != 0)
        return refuse(c, "dropout");
    return OK;
}

static Status read_normalizer(Compiler *c, const json_t *normalizer)
{
    const char *type = type_of(normalizer);
    size_t i;
    json_t *part;
    if (!normalizer || json_is_null(normalizer)) return OK;
    if (strcmp(type, "NFC") == 0) {
        c->nfc = true;
        return OK;
    }
    if (strcmp(type, "Sequence") != 0) return refuse(c, "a normalizer other than NFC");
    json_array_foreach(json_object_get(normalizer, "normalizers"), i, part) {
        Status status =
            strcmp(type_of(part), "NFC") == 0 ? read_normalizer(c, part) : refuse(c, "a normalizer other than NFC");
        if (status != OK) return status;
    }
    return OK;
}

static Status add_step(Compiler *c, bool literal, Str pattern)
{
    if (c->n_steps == MAX_PRETOKENIZE_STEPS) return refuse(c, "more than 8 pre-tokenizer steps");
    c->steps[c->n_steps++] = (PreTokenizeStep){ literal, pattern };
    return OK;
}

static Status read_split(Compiler *c, const json_t *step)
{
    const char *behavior = json_string_value(json_object_get(step, "behavior"));
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
    if (!behavior || strcmp(behavior, "Isolated") != 0 || is_set(step, "invert")) {
        return refuse(c, "a Split whose behavior is not Isolated");
    }
    const json_t *chosen = json_is_string(regex) ? regex : text;
    if (!json_is_string(chosen)) return malformed(c, "a Split has no pattern");
    return add_step(c, chosen != regex, (Str){ json_string_value(chosen), json_string_length(chosen) });
}

/* Digits and the pattern inside ByteLevel are regular expressions like any other. */
static Status read_pretokenizer(Compiler *c, const json_t *step)
{
    const char *type = type_of(step);
    if (strcmp(type, "Split") == 0) return read_split(c, step);
    if (strcmp(type, "Digits") == 0) {
        return add_step(c, false, is_set(step, "individual_digits") ? STR(DIGIT) : STR(DIGIT "+"));
    }
    if (strcmp(type, "ByteLevel") != 0) {
        return error_set(c->err, ERR_UNSUPPORTED, "%s asks for the pre-tokenizer \"%.60s\", which is not supported",
                         c->what, type);
    }
    c->byte_level = true;
    if (is_set(step, "add_prefix_space")) return refuse(c, "add_prefix_space");
    const json_t *use_regex = json_object_get(step, "use_regex"); /* true when absent */
    return json_is_false(use_regex) ? OK : add_step(c, false, STR(GPT2_PATTERN));
}

static Status read_pretokenizers(Compiler *c, const json_t *pretokenizer)
{
    size_t i;
    json_t *step;
    Status status = OK;
    if (strcmp(type_of(pretokenizer), "Sequence") != 0) {
        status = read_pretokenizer(c, pretokenizer);
    } else {
        json_array_foreach(json_object_get(pretokenizer, "pretokenizers"), i, step) {
            if (status == OK) status = read_pretokenizer(c, step);
        }
    }
    if (status == OK && !c->byte_level) status = refuse(c, "a pre-tokenizer without ByteLevel");
    return status;
}

static Status check_decoder(Compiler *c, const json_t *decoder)
{
    if (!decoder || json_is_null(decoder) || strcmp(type_of(decoder), "ByteLevel") == 0) return OK;
    return refuse(c, "a decoder other than ByteLevel");
}

/* root: without the tables, which are text. */
static Status read_json(Compiler *c, const json_t *root, Str vocab, Str merges)
{
    const json_t *model = json_object_get(root, "model");
    Status s = check_model(c, model);
    if (!s) s = read_normalizer(c, json_object_get(root, "normalizer"));
    if (!s) s = read_pretokenizers(c, json_object_get(root, "pre_tokenizer"));
    if (!s) s = check_decoder(c, json_object_get(root, "decoder"));
    if (!s) s = tables_read(&c->tables, vocab, merges, c->what, c->err);
    if (!s) s = read_tokens(c, root);
    if (!s && json_has(model, "unk_token") && misses_a_byte(c))
        s = refuse(c, "unk_token with an incomplete byte alphabet");
    return s;
}

/* ---- the image ---- */

static void append_steps(const Compiler *c, Buf *image)
{
    for (int i = 0; i < c->n_steps; i++) {
        uint32_t head[2] = { c->steps[i].literal, (uint32_t)c->steps[i].pattern.len };
        image_append(image, head, sizeof head);
        image_append(image, c->steps[i].pattern.data, c->steps[i].pattern.len);
    }
}

/* Tokens in the order of their ids: offsets first, as the layout has it, the bytes last. The tables for look-ups are
 * left as room. */
static Status append_sections(const Compiler *c, Buf *image, const SourceStamp *stamp)
{
    uint32_t *offsets = mem_alloc_array((size_t)c->n_ids + 1, sizeof *offsets);
    if (!offsets) return error_set(c->err, ERR_NOMEM, "no memory to compile %s", c->what);
    for (int32_t id = 0; id < c->n_ids; id++) offsets[id + 1] = offsets[id] + (uint32_t)c->tokens[id].len;
    ImageHeader header = { .magic = IMAGE_MAGIC,
                           .version = IMAGE_VERSION,
                           .source = *stamp,
                           .n_ids = (uint32_t)c->n_ids,
                           .n_merges = (uint32_t)c->tables.n_merges,
                           .n_pairs = bpe_table_slots(c->tables.n_merges),
                           .n_words = bpe_table_slots(c->n_ids),
                           .n_steps = (uint32_t)c->n_steps,
                           .nfc = c->nfc,
                           .blob_bytes = offsets[c->n_ids] };
    image_append(image, &header, sizeof header);
    image_append(image, offsets, ((size_t)c->n_ids + 1) * sizeof *offsets);
    image_append(image, c->flags, (size_t)c->n_ids);
    image_append(image, c->tables.merges, (size_t)c->tables.n_merges * sizeof *c->tables.merges);
    image_append_zeros(image, (size_t)header.n_pairs * sizeof(PairSlot));
    image_append_zeros(image, (size_t)header.n_words * sizeof(int32_t));
    append_steps(c, image);
    for (int32_t id = 0; id < c->n_ids; id++) buf_append(image, c->tokens[id].data, c->tokens[id].len);
    image_align(image);
    mem_free(offsets);
    return image->failed ? error_set(c->err, ERR_NOMEM, "no memory to compile %s", c->what) : OK;
}

/* With ignore_merges every word of the vocabulary is whole, else those that their own merges lead back to. */
static Status find_whole_words(const Vocab *vocab, uint8_t *flags, bool ignore_merges)
{
    BpeWork work = { 0 };
    IdList ids = { .max = INT32_MAX };
    Bpe bpe;
    bpe_open(&bpe, vocab);
    for (int32_t id = 0; id < vocab->n_ids; id++) {
        if (!(flags[id] & TOKEN_WORD)) continue;
        Str word = vocab_bytes(vocab, id);
        ids.n = 0;
        if (!ignore_merges) bpe_encode_by_merges(&bpe, &work, word.data, word.len, &ids);
        if (ignore_merges || (ids.n == 1 && ids.ids[0] == id)) flags[id] |= TOKEN_WHOLE;
    }
    mem_free(ids.ids);
    bpe_work_free(&work);
    return ids.status;
}

/* Where a view into the image can be written. */
static void *place(const Buf *image, const void *view)
{
    return image->data + ((const char *)view - image->data);
}

/* Fills the tables for look-ups and sets TOKEN_WHOLE, in an image that is complete but for that. */
static Status complete(Compiler *c, Buf *image, bool ignore_merges)
{
    Vocab vocab;
    CHECK(image_map(&vocab, image->data, image->len));
    bpe_fill_pairs(&vocab, place(image, vocab.pairs));
    bpe_fill_words(&vocab, place(image, vocab.words));
    Status status = find_whole_words(&vocab, place(image, vocab.flags), ignore_merges);
    if (status != OK) return error_set(c->err, status, "no memory to compile %s", c->what);
    image_seal(image->data, image->len);
    return OK;
}

static void compiler_free(Compiler *c)
{
    mem_free(c->tokens);
    mem_free(c->flags);
    mem_free(c->token_at);
    tables_free(&c->tables);
    buf_free(&c->token_text);
}

static Status compile_tree(Compiler *c, Buf *image, const json_t *root, Str vocab, Str merges, const SourceStamp *stamp)
{
    Status s = read_json(c, root, vocab, merges);
    if (!s) s = append_sections(c, image, stamp);
    if (!s) s = complete(c, image, is_set(json_object_get(root, "model"), "ignore_merges"));
    return s;
}

/* What is wrong: that the text is no JSON comes before everything else, and with the place in the whole of it. */
static Status explain(Status status, const Error *why, const char *json, size_t n, const char *what, Error *err)
{
    json_t *tree = NULL;
    Status whole = status != ERR_NOMEM ? json_parse(&tree, json, n, what, err) : OK;
    json_decref(tree);
    return whole != OK ? whole : error_set(err, status, "%s", why->text);
}

static Status compile_text(Compiler *c, Buf *image, Buf *rest, const char *json, size_t n, const SourceStamp *stamp)
{
    Str vocab, merges;
    json_t *root;
    if (utf8_valid_bytes(json, n) < n) return malformed(c, "it is not UTF-8");
    if (!json_cut(rest, &vocab, &merges, json, n)) return error_set(c->err, ERR_NOMEM, "no memory to read %s", c->what);
    Status status = json_parse(&root, rest->data ? rest->data : "", rest->len, c->what, c->err);
    if (status != OK) return status;
    status = compile_tree(c, image, root, vocab, merges, stamp);
    json_decref(root);
    return status;
}

Status image_compile(Buf *image, const char *json, size_t n, const char *what, const SourceStamp *stamp, Error *err)
{
    Error why = { 0 };
    Compiler c = { .what = what, .err = &why };
    Buf rest;
    buf_init(&rest, n + 8);
    buf_init(&c.token_text, MAX_VOCAB_BYTES);
    fill_char_byte(&c);
    Status status = compile_text(&c, image, &rest, json, n, stamp);
    compiler_free(&c);
    buf_free(&rest);
    return status == OK ? OK : explain(status, &why, json, n, what, err);
}
