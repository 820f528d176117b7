/* Added tokens in raw text: leftmost first, then the longest, by a trie over their bytes.
 *
 *     '<' ── '|' ── 'i' ── 'm' ── ...            child: down, sibling: across
 *      └ 't' ── 'h' ── ...
 *
 * The usual text holds few of their first bytes, so that finding none costs a table look-up a byte. */
#include "text/tokenizer_impl.h"
#include "base/memory.h"

static int32_t child_with(const AddedTokens *a, int32_t node, uint8_t byte)
{
    int32_t at = a->nodes[node].child;
    while (at >= 0 && a->nodes[at].byte != byte) at = a->nodes[at].sibling;
    return at;
}

static int32_t node_take(AddedTokens *a, uint8_t byte, int32_t sibling)
{
    if (a->n_nodes == a->capacity) {
        int32_t capacity = a->capacity < 64 ? 256 : 2 * a->capacity;
        struct AddedNode *more = mem_realloc(a->nodes, (size_t)capacity * sizeof *more);
        if (!more) return -1;
        a->nodes = more;
        a->capacity = capacity;
    }
    a->nodes[a->n_nodes] = (struct AddedNode){ .child = -1, .sibling = sibling, .id = -1, .byte = byte };
    return a->n_nodes++;
}

static bool insert(AddedTokens *a, Str token, int32_t id)
{
    int32_t node = 0;
    for (size_t i = 0; i < token.len; i++) {
        uint8_t byte = (uint8_t)token.data[i];
        int32_t next = child_with(a, node, byte);
        if (next < 0) {
            next = node_take(a, byte, a->nodes[node].child);
            if (next < 0) return false;
            a->nodes[node].child = next;
        }
        node = next;
    }
    a->nodes[node].id = id;
    a->starts[(uint8_t)token.data[0]] = true;
    return true;
}

Status added_tokens_open(AddedTokens *a, const Vocab *vocab, uint8_t mask, uint8_t want, Error *err)
{
    *a = (AddedTokens){ 0 };
    bool ok = node_take(a, 0, -1) == 0;
    for (int32_t id = 0; ok && id < vocab->n_ids; id++) {
        Str token = vocab_bytes(vocab, id);
        if ((vocab->flags[id] & mask) == want && token.len > 0) ok = insert(a, token, id);
    }
    if (ok) return OK;
    added_tokens_close(a);
    return error_set(err, ERR_NOMEM, "no memory for the added tokens");
}

void added_tokens_close(AddedTokens *a)
{
    mem_free(a->nodes);
    *a = (AddedTokens){ 0 };
}

static int32_t longest_at(const AddedTokens *a, const char *text, size_t n, size_t *len)
{
    int32_t id = -1;
    int32_t node = child_with(a, 0, (uint8_t)text[0]);
    for (size_t i = 1; node >= 0; i++) {
        if (a->nodes[node].id >= 0) {
            id = a->nodes[node].id;
            *len = i;
        }
        node = i < n ? child_with(a, node, (uint8_t)text[i]) : -1;
    }
    return id;
}

int32_t added_tokens_find(const AddedTokens *a, const char *text, size_t n, size_t from, size_t *at, size_t *len)
{
    for (; from < n; from++) {
        if (!a->starts[(uint8_t)text[from]]) continue;
        int32_t id = longest_at(a, text + from, n - from, len);
        if (id < 0) continue;
        *at = from;
        return id;
    }
    return -1;
}
