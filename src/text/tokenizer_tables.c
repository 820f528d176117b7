/* The vocabulary and the merges of a tokenizer.json: entries with their ids, and for each merge the ids of its halves
 * and of what it makes, found by a table over the entries' texts. */
#include "text/tokenizer_tables_impl.h"
#include "base/memory.h"

enum { MAX_ESCAPED_BYTES = 1 << 28 };

static Status malformed(const char *what, const char *where, Error *err)
{
    return error_set(err, ERR_INPUT, "%s is malformed: %s", what, where);
}

static Status no_memory(const char *what, Error *err)
{
    return error_set(err, ERR_NOMEM, "no memory to read %s", what);
}

/* Room for one more item of an array that doubles. */
static bool grow(void **items, int32_t n, int32_t *capacity, size_t item_bytes)
{
    if (n < *capacity) return true;
    int32_t more = *capacity ? 2 * *capacity : 4096;
    void *grown = n < INT32_MAX / 2 ? mem_realloc(*items, (size_t)more * item_bytes) : NULL;
    if (!grown) return false;
    *items = grown;
    *capacity = more;
    return true;
}

/* ---- vocabulary ---- */

static Status read_entry(Tables *t, JsonCursor *c, Buf *scratch, const char *what, Error *err)
{
    Str text = cursor_string(c, scratch);
    cursor_expect(c, ':');
    int64_t id = cursor_natural(c);
    if (scratch->failed) return no_memory(what, err);
    if (c->failed) return malformed(what, "its vocab is not an object of ids", err);
    if (id < 0 || id > MAX_TOKEN_ID) return malformed(what, "a token id is out of range", err);
    if (text.len > 0 && text.data == scratch->data) text.data = arena_strndup(&t->arena, text.data, text.len);
    if (!text.data || !grow((void **)&t->entries, t->n_entries, &t->capacity, sizeof *t->entries))
        return no_memory(what, err);
    t->entries[t->n_entries++] = (Entry){ text, (int32_t)id };
    return OK;
}

static Status read_entries(Tables *t, Str vocab, Buf *scratch, const char *what, Error *err)
{
    JsonCursor c = { vocab.data, vocab.data + vocab.len, false };
    bool is_first = true;
    cursor_enter(&c, '{');
    while (cursor_next(&c, '}', &is_first)) {
        Status status = read_entry(t, &c, scratch, what, err);
        if (status != OK) return status;
    }
    return cursor_done(&c) ? OK : malformed(what, "its vocab is not an object of ids", err);
}

/* Place of the entry with this text, or the empty slot where it would be. */
static int32_t *slot_of(const Tables *t, Str text)
{
    for (uint32_t at = bytes_hash(text.data, text.len);; at++) {
        int32_t *slot = &t->slots[at & (t->n_slots - 1)];
        if (*slot < 0 || str_equal(t->entries[*slot].text, text)) return slot;
    }
}

static Status index_entries(Tables *t, const char *what, Error *err)
{
    t->n_slots = bpe_table_slots(t->n_entries);
    t->slots = mem_alloc_array(t->n_slots, sizeof *t->slots);
    if (!t->slots) return no_memory(what, err);
    memset(t->slots, 0xFF, t->n_slots * sizeof *t->slots);
    for (int32_t i = 0; i < t->n_entries; i++) {
        Str text = t->entries[i].text;
        int32_t *slot = slot_of(t, text);
        if (*slot >= 0) {
            return error_set(err, ERR_INPUT, "%s is malformed: its vocab has \"%.*s\" twice", what,
                             (int)(text.len < 80 ? text.len : 80), text.data);
        }
        *slot = i;
    }
    return OK;
}

static int32_t id_of(const Tables *t, Str text)
{
    int32_t entry = *slot_of(t, text);
    return entry < 0 ? -1 : t->entries[entry].id;
}

/* ---- merges ---- */

typedef struct MergeReader {
    JsonCursor  cursor;
    Buf         scratch[2], joined;
    const char *what;
    Error      *err;
} MergeReader;

/* Both forms: "A B", cut at the first space, and ["A", "B"]. */
static Status read_halves(MergeReader *r, Str *left, Str *right)
{
    JsonCursor *c = &r->cursor;
    bool is_pair = cursor_peek(c) == '[';
    if (is_pair) cursor_enter(c, '[');
    *left = cursor_string(c, &r->scratch[0]);
    if (is_pair) {
        cursor_expect(c, ',');
        *right = cursor_string(c, &r->scratch[1]);
        cursor_expect(c, ']');
    }
    if (r->scratch[0].failed || r->scratch[1].failed) return no_memory(r->what, r->err);
    if (c->failed) return malformed(r->what, "a merge is neither a string nor a pair of strings", r->err);
    if (is_pair) return OK;
    const char *space = left->len ? memchr(left->data, ' ', left->len) : NULL;
    if (!space) return malformed(r->what, "a merge has no space", r->err);
    *right = (Str){ space + 1, left->len - (size_t)(space + 1 - left->data) };
    left->len = (size_t)(space - left->data);
    return OK;
}

static Status add_merge(Tables *t, MergeReader *r, Str left, Str right)
{
    buf_clear(&r->joined);
    buf_append(&r->joined, left.data, left.len);
    buf_append(&r->joined, right.data, right.len);
    if (r->joined.failed || !grow((void **)&t->merges, t->n_merges, &t->merge_capacity, sizeof *t->merges))
        return no_memory(r->what, r->err);
    if (!left.len || !right.len) return malformed(r->what, "a merge has an empty half", r->err);
    Merge m = { id_of(t, left), id_of(t, right), id_of(t, (Str){ r->joined.data, r->joined.len }) };
    t->merges[t->n_merges++] = m;
    if (m.left >= 0 && m.right >= 0 && m.id >= 0) return OK;
    return error_set(r->err, ERR_INPUT,
                     "%s is malformed: the merge that makes \"%.80s\" names a token that is not in the vocabulary",
                     r->what, r->joined.data);
}

static Status read_merge(Tables *t, MergeReader *r, bool may_be_version)
{
    Str left = { "", 0 }, right = left;
    Status status = read_halves(r, &left, &right);
    if (status != OK || (may_be_version && str_starts(left, STR("#version")))) return status;
    return add_merge(t, r, left, right);
}

static Status read_merges(Tables *t, MergeReader *r)
{
    bool is_first = true, is_version = true;
    cursor_enter(&r->cursor, '[');
    while (cursor_next(&r->cursor, ']', &is_first)) {
        Status status = read_merge(t, r, is_version);
        if (status != OK) return status;
        is_version = false;
    }
    return cursor_done(&r->cursor) ? OK : malformed(r->what, "its merges are not a list", r->err);
}

Status tables_read(Tables *t, Str vocab, Str merges, const char *what, Error *err)
{
    MergeReader r = { .cursor = { merges.data, merges.data + merges.len, false }, .what = what, .err = err };
    *t = (Tables){ 0 };
    arena_init(&t->arena, 64 << 10, MAX_ESCAPED_BYTES);
    for (int i = 0; i < COUNT(r.scratch); i++) buf_init(&r.scratch[i], MAX_ESCAPED_BYTES);
    buf_init(&r.joined, MAX_ESCAPED_BYTES);
    Status status = read_entries(t, vocab, &r.scratch[0], what, err);
    if (status == OK) status = index_entries(t, what, err);
    if (status == OK) status = read_merges(t, &r);
    for (int i = 0; i < COUNT(r.scratch); i++) buf_free(&r.scratch[i]);
    buf_free(&r.joined);
    return status;
}

void tables_free(Tables *t)
{
    mem_free(t->entries);
    mem_free(t->slots);
    mem_free(t->merges);
    arena_free(&t->arena);
    *t = (Tables){ 0 };
}
