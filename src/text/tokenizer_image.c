/* The compiled tokenizer as one piece of memory: what a cache file holds.
 *
 *     ImageHeader | offsets u32 [n_ids + 1] | flags u8 [n_ids] | merges [n_merges] | steps | blob
 *
 * Every section begins at a multiple of 8. A step is its kind, its length and its pattern. The image is input even when
 * we wrote it: a disk, another version or another user may have touched it. So image_open() checks the checksum, which
 * finds accidents, and then every number, which leaves nothing for the others to stumble over. */
#include "text/tokenizer_image_impl.h"
#include "base/sha256.h"

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

bool image_seal(char *image, size_t n)
{
    ImageHeader *h = (ImageHeader *)image;
    return bytes_sha(image + sizeof h->sha, n - sizeof h->sha, h->sha);
}

const SourceStamp *image_stamp(const char *image)
{
    return &((const ImageHeader *)image)->source;
}

bool image_restamp(char *image, size_t n, const SourceStamp *stamp)
{
    ((ImageHeader *)image)->source = *stamp;
    return image_seal(image, n);
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

static bool header_ok(const ImageHeader *h)
{
    return h->magic == IMAGE_MAGIC && h->version == IMAGE_VERSION && h->n_ids > 0 && h->n_ids <= MAX_TOKEN_ID + 1 &&
           h->n_merges <= INT32_MAX / (int)sizeof(Merge) && h->n_steps <= MAX_PRETOKENIZE_STEPS && h->nfc <= 1;
}

static bool offsets_ok(const Vocab *v, uint32_t blob_bytes)
{
    for (int32_t id = 0; id < v->n_ids; id++) {
        if (v->offsets[id] > v->offsets[id + 1]) return false;
    }
    return v->offsets[0] == 0 && v->offsets[v->n_ids] == blob_bytes;
}

static bool merges_ok(const Vocab *v)
{
    uint32_t n = (uint32_t)v->n_ids;
    for (int32_t i = 0; i < v->n_merges; i++) {
        const Merge *m = &v->merges[i];
        if ((uint32_t)m->left >= n || (uint32_t)m->right >= n || (uint32_t)m->id >= n) return false;
    }
    return true;
}

/* Views into the sections; false when they do not fill the image exactly. */
static bool map_sections(Vocab *vocab, const ImageHeader *h, const char *image, size_t n)
{
    Reader r = { .image = image, .at = sizeof *h, .n = n };
    *vocab = (Vocab){ .n_ids = (int32_t)h->n_ids, .n_merges = (int32_t)h->n_merges, .nfc = h->nfc };
    vocab->n_steps = (int)h->n_steps;
    vocab->offsets = take(&r, (size_t)h->n_ids + 1, sizeof *vocab->offsets);
    vocab->flags = take(&r, h->n_ids, 1);
    vocab->merges = take(&r, h->n_merges, sizeof *vocab->merges);
    take_steps(&r, vocab, h->n_steps);
    vocab->blob = take(&r, h->blob_bytes, 1);
    return !r.failed && r.at == n;
}

Status image_open(Vocab *vocab, const char *image, size_t n, const char *what, Error *err)
{
    const ImageHeader *h = (const ImageHeader *)image;
    uint8_t sha[32];
    if (n < sizeof *h) return error_set(err, ERR_INPUT, "%s is cut short", what);
    if (!header_ok(h)) return error_set(err, ERR_INPUT, "%s was not made by this version", what);
    if (!bytes_sha(image + sizeof sha, n - sizeof sha, sha))
        return error_set(err, ERR_NOMEM, "no memory to check %s", what);
    if (memcmp(sha, h->sha, sizeof sha) != 0) return error_set(err, ERR_INPUT, "%s has a wrong checksum", what);
    if (!map_sections(vocab, h, image, n) || !offsets_ok(vocab, h->blob_bytes) || !merges_ok(vocab)) {
        return error_set(err, ERR_INPUT, "%s is inconsistent", what);
    }
    return OK;
}

/* ---- writing ---- */

void image_append(Buf *image, const void *data, size_t n)
{
    static const char zeros[8];
    buf_append(image, data, n);
    buf_append(image, zeros, round_up(n) - n);
}
