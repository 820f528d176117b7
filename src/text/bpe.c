/* Byte-pair encoding of one word: the lowest-ranked adjacent pair is merged, the leftmost first, until none is known.
 *
 * Most words of real text are tokens themselves. Whether such a word encodes to just that token is found out once, when
 * the image is compiled (TOKEN_WHOLE), so that usually one look-up is all. The others go through a linked list of
 * symbols and a heap of candidate pairs, n log n: a word may be a megabyte of one letter.
 *
 *     symbols  [h] <-> [el] <-> [l] <-> [o]        a symbol keeps the rank of the pair it begins, -1 = none
 *     heap     rank << 32 | place of the left one  entries grow stale; the symbol's rank shows it
 *
 * Always: an entry is good iff its rank is still the symbol's. Swallowed symbols have rank -1. */
#include "text/tokenizer_impl.h"
#include "base/memory.h"

#include <limits.h>

void id_list_push(IdList *list, int32_t id)
{
    if (list->status != OK) return;
    if (list->n >= list->max) {
        list->status = ERR_INPUT;
        return;
    }
    if (list->n == list->capacity) {
        int64_t capacity = list->capacity < 64 ? 128 : 2 * list->capacity;
        int32_t *more = mem_realloc(list->ids, (size_t)capacity * sizeof *more);
        if (!more) {
            list->status = ERR_NOMEM;
            return;
        }
        list->ids = more;
        list->capacity = capacity;
    }
    list->ids[list->n++] = id;
}

/* ---- tables ---- */

static uint32_t pair_hash(int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u;
    return (uint32_t)(key ^ key >> 32);
}

uint32_t bytes_hash(const char *bytes, size_t n)
{
    uint64_t h = n;
    uint64_t word = 0;
    for (; n >= sizeof word; bytes += sizeof word, n -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, bytes, n);
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h ^ h >> 32);
}

/* Power of two, filled to three quarters at most: probing always meets an empty slot, and few pages are touched. */
uint32_t bpe_table_slots(int32_t n)
{
    uint32_t slots = 16;
    while (slots / 4 * 3 < (uint32_t)n) slots *= 2;
    return slots;
}

static const PairSlot *pair_slot(const Vocab *v, const PairSlot *pairs, int32_t left, int32_t right)
{
    for (uint32_t at = pair_hash(left, right);; at++) {
        const PairSlot *slot = &pairs[at & (v->n_pairs - 1)];
        if (slot->rank < 0 || (slot->left == left && slot->right == right)) return slot;
    }
}

static const int32_t *word_slot(const Vocab *v, const int32_t *words, const char *bytes, size_t n)
{
    for (uint32_t at = bytes_hash(bytes, n);; at++) {
        const int32_t *slot = &words[at & (v->n_words - 1)];
        if (*slot < 0 || str_equal(vocab_bytes(v, *slot), (Str){ bytes, n })) return slot;
    }
}

void bpe_fill_pairs(const Vocab *v, PairSlot *pairs)
{
    for (uint32_t i = 0; i < v->n_pairs; i++) pairs[i].rank = -1;
    for (int32_t rank = 0; rank < v->n_merges; rank++) {
        const Merge *m = &v->merges[rank];
        pairs[pair_slot(v, pairs, m->left, m->right) - pairs] = (PairSlot){ m->left, m->right, rank };
    }
}

void bpe_fill_words(const Vocab *v, int32_t *words)
{
    memset(words, 0xFF, v->n_words * sizeof *words);
    for (int32_t id = 0; id < v->n_ids; id++) {
        if (!(v->flags[id] & TOKEN_WORD)) continue;
        Str bytes = vocab_bytes(v, id);
        words[word_slot(v, words, bytes.data, bytes.len) - words] = id;
    }
}

void bpe_open(Bpe *bpe, const Vocab *vocab)
{
    bpe->vocab = vocab;
    for (int b = 0; b < COUNT(bpe->byte_id); b++) bpe->byte_id[b] = bpe_find_word(bpe, &(char){ (char)b }, 1);
}

int32_t bpe_find_word(const Bpe *bpe, const char *bytes, size_t n)
{
    return *word_slot(bpe->vocab, bpe->vocab->words, bytes, n);
}

/* ---- merging ---- */

static bool work_reserve(BpeWork *work, size_t n)
{
    if (n <= work->capacity) return true;
    size_t capacity = n < 256 ? 256 : n + n / 2;
    mem_free(work->symbols);
    mem_free(work->heap);
    work->symbols = mem_realloc(NULL, capacity * sizeof *work->symbols);
    work->heap = mem_realloc(NULL, 2 * capacity * sizeof *work->heap);
    work->capacity = work->symbols && work->heap ? capacity : 0;
    return work->capacity > 0;
}

void bpe_work_free(BpeWork *work)
{
    mem_free(work->symbols);
    mem_free(work->heap);
    *work = (BpeWork){ 0 };
}

void bpe_work_trim(BpeWork *work)
{
    if (work->capacity > 65536) bpe_work_free(work);
}

static void heap_sink(uint64_t *heap, size_t n, size_t at, uint64_t value)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t value)
{
    size_t at = (*n)++;
    for (; at > 0 && heap[(at - 1) / 2] > value; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    if (--*n > 0) heap_sink(heap, *n, 0, heap[*n]);
    return top;
}

static void rank_symbol(const Bpe *bpe, struct Symbol *symbols, int32_t at)
{
    struct Symbol *s = &symbols[at];
    s->rank = s->next < 0 ? -1 : pair_slot(bpe->vocab, bpe->vocab->pairs, s->id, symbols[s->next].id)->rank;
}

/* One symbol a byte, linked; their number. */
static int32_t symbols_begin(const Bpe *bpe, struct Symbol *symbols, const char *word, size_t n)
{
    int32_t count = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = bpe->byte_id[(uint8_t)word[i]];
        if (id < 0) continue;
        symbols[count] = (struct Symbol){ .id = id, .prev = count - 1, .next = count + 1, .rank = -1 };
        count++;
    }
    if (count > 0) symbols[count - 1].next = -1;
    return count;
}

/* Merges symbol `at` with the one behind it and gives the two new pairs to the heap. */
static void merge_at(const Bpe *bpe, BpeWork *work, size_t *n_heap, int32_t at)
{
    struct Symbol *symbols = work->symbols, *s = &symbols[at], *right = &symbols[s->next];
    s->id = bpe->vocab->merges[s->rank].id;
    s->next = right->next;
    if (s->next >= 0) symbols[s->next].prev = at;
    right->rank = -1;

    int32_t changed[2] = { at, s->prev };
    for (int i = 0; i < 2; i++) {
        if (changed[i] < 0) continue;
        rank_symbol(bpe, symbols, changed[i]);
        int32_t rank = symbols[changed[i]].rank;
        if (rank >= 0) heap_push(work->heap, n_heap, (uint64_t)rank << 32 | (uint32_t)changed[i]);
    }
}

/* The heap never outgrows 2 n: at most n - 1 entries to begin with, each of at most n - 1 merges takes one out before
 * it puts up to two in. */
void bpe_encode_by_merges(const Bpe *bpe, BpeWork *work, const char *word, size_t n, IdList *out)
{
    if (n > INT32_MAX / 2 || !work_reserve(work, n)) {
        if (out->status == OK) out->status = ERR_NOMEM;
        return;
    }
    struct Symbol *symbols = work->symbols;
    int32_t count = symbols_begin(bpe, symbols, word, n);
    size_t n_heap = 0;
    for (int32_t i = 0; i < count; i++) {
        rank_symbol(bpe, symbols, i);
        if (symbols[i].rank >= 0) work->heap[n_heap++] = (uint64_t)symbols[i].rank << 32 | (uint32_t)i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) heap_sink(work->heap, n_heap, i, work->heap[i]);
    while (n_heap > 0) {
        uint64_t top = heap_pop(work->heap, &n_heap);
        int32_t at = (int32_t)(top & UINT32_MAX);
        if (symbols[at].rank == (int32_t)(top >> 32)) merge_at(bpe, work, &n_heap, at);
    }
    for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[i].next) id_list_push(out, symbols[i].id);
}

void bpe_encode(const Bpe *bpe, BpeWork *work, const char *word, size_t n, IdList *out)
{
    int32_t id = bpe_find_word(bpe, word, n);
    if (id >= 0 && bpe->vocab->flags[id] & TOKEN_WHOLE) id_list_push(out, id);
    else bpe_encode_by_merges(bpe, work, word, n, out);
}
