/* The compiled tokenizer as one piece of memory: what a cache file holds.
 *
 *     ImageHeader | offsets u32 [n_ids + 1] | flags u8 [n_ids] | merges [n_merges] | pairs [n_pairs] | words [n_words]
 *                 | steps | blob
 *
 * Every section begins at a multiple of 8. A step is its kind, its length and its pattern. The image is input even when
 * we wrote it: a disk, another version or another user may have touched it. So image_open() checks the checksum, which
 * finds accidents, and then every number, which leaves nothing for the others to stumble over. */
#include "text/tokenizer_image_impl.h"
#include "base/sha256.h"

#include <xxhash.h>

static size_t round_up(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

bool bytes_sha(const void *data, size_t n, uint8_t digest[32])
{
    Sha256 *h = sha256_open();
    if (!h) return false;
    sha256_add(h, data, n);
    sha256_end(h, digest);
    return true;
}

/* Against accidents; who can write here as we do needs no collision. */
static void sum(const char *image, size_t n, uint64_t checksum[2])
{
    size_t begin = sizeof ((ImageHeader *)0)->checksum;
    XXH128_hash_t hash = XXH3_128bits(image + begin, n - begin);
    checksum[0] = hash.low64;
    checksum[1] = hash.high64;
}

void image_seal(char *image, size_t n)
{
    sum(image, n, ((ImageHeader *)image)->checksum);
}

const SourceStamp *image_stamp(const char *image)
{
    return &((const ImageHeader *)image)->source;
}

void image_restamp(char *image, size_t n, const SourceStamp *stamp)
{
    ((ImageHeader *)image)->source = *stamp;
    image_seal(image, n);
}

/* ---- reading ---- */

typedef struct Reader {
    const char *image;
    size_t      at, n;
    bool        failed;
} Reader;

/* The next count * item_bytes bytes, and on to a multiple of 8. */
static const void *take(Reader *r, size_t count, size_t item_bytes)
{
    size_t bytes = count * item_bytes; /* both come from 32 bits and a small constant */
    if (r->failed || bytes > r->n - r->at || round_up(bytes) > r->n - r->at) {
        r->failed = true;
        return NULL;
    }
    const void *begin = r->image + r->at;
    r->at += round_up(bytes);
    return begin;
}

static void take_steps(Reader *r, Vocab *vocab, uint32_t n_steps)
{
    for (uint32_t i = 0; i < n_steps; i++) {
        const uint32_t *head = take(r, 2, sizeof *head);
        if (!head) return;
        vocab->steps[i] = (PreTokenizeStep){ head[0] != 0, { take(r, head[1], 1), head[1] } };
    }
}

static bool is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static bool header_ok(const ImageHeader *h)
{
    return h->magic == IMAGE_MAGIC && h->version == IMAGE_VERSION && h->n_ids > 0 && h->n_ids <= MAX_TOKEN_ID + 1 &&
           h->n_merges <= INT32_MAX / (int)sizeof(Merge) && is_power_of_two(h->n_pairs) && is_power_of_two(h->n_words) &&
           h->n_steps <= MAX_PRETOKENIZE_STEPS && h->nfc <= 1;
}

/* These loops run over a few megabytes at each start: without a way out in the middle they take a third of the time. */
static bool offsets_ok(const Vocab *v, uint32_t blob_bytes)
{
    bool bad = false;
    for (int32_t id = 0; id < v->n_ids; id++) bad |= v->offsets[id] > v->offsets[id + 1];
    return !bad && v->offsets[0] == 0 && v->offsets[v->n_ids] == blob_bytes;
}

static bool merges_ok(const Vocab *v)
{
    uint32_t n = (uint32_t)v->n_ids;
    bool bad = false;
    for (int32_t i = 0; i < v->n_merges; i++) {
        const Merge *m = &v->merges[i];
        bad |= ((uint32_t)m->left >= n) | ((uint32_t)m->right >= n) | ((uint32_t)m->id >= n);
    }
    return !bad;
}

/* Probing ends only at an empty slot, so there must be one. */
static bool tables_ok(const Vocab *v)
{
    uint32_t empty_pairs = 0, empty_words = 0;
    bool ok = true;
    for (uint32_t i = 0; i < v->n_pairs; i++) {
        empty_pairs += v->pairs[i].rank == -1;
        ok &= (uint32_t)v->pairs[i].rank + 1 <= (uint32_t)v->n_merges;
    }
    for (uint32_t i = 0; i < v->n_words; i++) {
        empty_words += v->words[i] == -1;
        ok &= (uint32_t)v->words[i] + 1 <= (uint32_t)v->n_ids;
    }
    return ok && empty_pairs > 0 && empty_words > 0;
}

bool image_map(Vocab *vocab, const char *image, size_t n)
{
    const ImageHeader *h = (const ImageHeader *)image;
    Reader r = { .image = image, .at = sizeof *h, .n = n };
    *vocab = (Vocab){ .n_ids = (int32_t)h->n_ids, .n_merges = (int32_t)h->n_merges, .nfc = h->nfc };
    vocab->n_pairs = h->n_pairs;
    vocab->n_words = h->n_words;
    vocab->n_steps = (int)h->n_steps;
    vocab->offsets = take(&r, (size_t)h->n_ids + 1, sizeof *vocab->offsets);
    vocab->flags = take(&r, h->n_ids, 1);
    vocab->merges = take(&r, h->n_merges, sizeof *vocab->merges);
    vocab->pairs = take(&r, h->n_pairs, sizeof *vocab->pairs);
    vocab->words = take(&r, h->n_words, sizeof *vocab->words);
    take_steps(&r, vocab, h->n_steps);
    vocab->blob = take(&r, h->blob_bytes, 1);
    return !r.failed && r.at == n;
}

Status image_open(Vocab *vocab, const char *image, size_t n, const char *what, Error *err)
{
    const ImageHeader *h = (const ImageHeader *)image;
    uint64_t checksum[2];
    if (n < sizeof *h) return error_set(err, ERR_INPUT, "%s is cut short", what);
    if (!header_ok(h)) return error_set(err, ERR_INPUT, "%s was not made by this version", what);
    sum(image, n, checksum);
    if (memcmp(checksum, h->checksum, sizeof checksum) != 0) return error_set(err, ERR_INPUT, "%s has a wrong checksum", what);
    if (!image_map(vocab, image, n) || !offsets_ok(vocab, h->blob_bytes) || !merges_ok(vocab) || !tables_ok(vocab)) {
        return error_set(err, ERR_INPUT, "%s is inconsistent", what);
    }
    return OK;
}

/* ---- writing ---- */

void image_append_zeros(Buf *image, size_t n)
{
    size_t begin = image->len;
    buf_reserve(image, n);
    if (image->failed) return;
    memset(image->data + begin, 0, n);
    image->len = begin + n;
    image_align(image);
}

void image_append(Buf *image, const void *data, size_t n)
{
    buf_append(image, data, n);
    image_align(image);
}

void image_align(Buf *image)
{
    static const char zeros[8];
    buf_append(image, zeros, round_up(image->len) - image->len);
}
