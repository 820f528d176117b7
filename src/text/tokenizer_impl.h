/* Parts of the tokenizer, for this folder:
 *
 *     tokenizer.json ─compile─> image ─open─> Vocab ─┬─> AddedTokens   finds <|im_start|> and its like in raw text
 *                               │  ^                 ├─> PreTokenizer  cuts text into words by regular expressions
 *                         store v  │ find            └─> Bpe           one word to ids
 *                              cache file
 *
 * The image is one piece of memory without pointers. A fresh one and one from the cache go the same way through
 * image_open(), which trusts neither. */
#pragma once

#include "text/tokenizer.h"
#include "text/unicode_impl.h"

enum {
    MAX_TOKEN_ID = (1 << 22) - 1,  /* 17 times the largest published vocabulary */
    MAX_PRETOKENIZE_STEPS = 8,
};

enum TokenFlag {
    TOKEN_KNOWN = 1,      /* this id exists */
    TOKEN_SPECIAL = 2,    /* special = true: left out when special tokens are skipped */
    TOKEN_ADDED = 4,      /* found in raw text before anything else */
    TOKEN_NORMALIZED = 8, /* added, but looked for after normalisation */
    TOKEN_WORD = 16,      /* from the vocabulary: merges can make it */
    TOKEN_WHOLE = 32,     /* a word of exactly these bytes encodes to this one id: no merges need be tried */
};

typedef struct Merge {
    int32_t left, right, id;
} Merge;

typedef struct PairSlot {
    int32_t left, right, rank; /* rank -1 = empty */
} PairSlot;

typedef struct PreTokenizeStep {
    bool literal; /* the pattern is text to be found, not a regular expression */
    Str  pattern;
} PreTokenizeStep;

/* Borrows from the image. */
typedef struct Vocab {
    int32_t         n_ids;   /* highest known id + 1 */
    const uint32_t *offsets; /* [n_ids + 1] into blob */
    const uint8_t  *flags;   /* [n_ids] */
    const char     *blob;
    int32_t         n_merges;
    const Merge    *merges;  /* in order of rank */
    uint32_t        n_pairs, n_words; /* slots of the two tables, powers of two; each has an empty one */
    const PairSlot *pairs;   /* ranks by hash of the pair */
    const int32_t  *words;   /* ids of TOKEN_WORD tokens by hash of their bytes, -1 = empty */
    bool            nfc;
    int             n_steps;
    PreTokenizeStep steps[MAX_PRETOKENIZE_STEPS];
} Vocab;

static inline Str vocab_bytes(const Vocab *v, int32_t id)
{
    return (Str){ v->blob + v->offsets[id], v->offsets[id + 1] - v->offsets[id] };
}

/* ---- growing list of ids ---- */

typedef struct IdList {
    int32_t *ids;
    int64_t  n, capacity, max;
    Status   status; /* first failure, kept: ERR_INPUT = more than max, ERR_NOMEM */
} IdList;
void id_list_push(IdList *list, int32_t id);

/* ---- words to ids ---- */

typedef struct Bpe {
    const Vocab *vocab;
    int32_t      byte_id[256]; /* token of one byte, -1 = none: such bytes vanish, as in the original */
} Bpe;

typedef struct BpeWork {
    struct Symbol {
        int32_t id, prev, next, rank;
    } *symbols;
    uint64_t *heap;
    size_t    capacity; /* symbols; the heap has twice as many places */
} BpeWork;

void    bpe_open(Bpe *bpe, const Vocab *vocab); /* borrows; nothing to close */
int32_t bpe_find_word(const Bpe *bpe, const char *bytes, size_t n); /* id of the TOKEN_WORD token, -1 */
void    bpe_encode(const Bpe *bpe, BpeWork *work, const char *word, size_t n, IdList *out);
void    bpe_encode_by_merges(const Bpe *bpe, BpeWork *work, const char *word, size_t n, IdList *out);
void    bpe_work_trim(BpeWork *work); /* gives back what one unusual text made it grow to */
void    bpe_work_free(BpeWork *work);

/* For who makes a Vocab: sizes and contents of its two tables. */
uint32_t bytes_hash(const char *bytes, size_t n);
uint32_t bpe_table_slots(int32_t n);
void     bpe_fill_pairs(const Vocab *v, PairSlot *pairs); /* by merges */
void     bpe_fill_words(const Vocab *v, int32_t *words);  /* by flags and blob */

/* ---- added tokens in raw text ---- */

typedef struct AddedTokens {
    struct AddedNode {
        int32_t child, sibling, id; /* -1 = none */
        uint8_t byte;
    } *nodes;
    int32_t n_nodes, capacity;
    bool    starts[256]; /* bytes that some token begins with */
} AddedTokens;

/* Collects the tokens whose flags under `mask` equal `want`. */
Status  added_tokens_open(AddedTokens *a, const Vocab *vocab, uint8_t mask, uint8_t want, Error *err);
void    added_tokens_close(AddedTokens *a);
/* Leftmost, then longest one at or after `from`: its id, *at and *len; -1 when there is none. */
int32_t added_tokens_find(const AddedTokens *a, const char *text, size_t n, size_t from, size_t *at, size_t *len);

/* ---- text to words ---- */

typedef struct PreTokenizer PreTokenizer;
typedef struct PreTokenizeWork PreTokenizeWork;
typedef void (*WordSink)(void *user, const char *word, size_t n);

Status pretokenizer_open(PreTokenizer **out, const Vocab *vocab, Error *err);
void   pretokenizer_close(PreTokenizer *p);
Status pretokenize_work_open(PreTokenizeWork **out, const PreTokenizer *p, Error *err);
void   pretokenize_work_trim(PreTokenizeWork *work); /* gives back what one unusual text made it grow to */
void   pretokenize_work_close(PreTokenizeWork *work);
/* Gives every word of valid UTF-8 text to sink, in order, none empty. */
Status pretokenize(const PreTokenizer *p, PreTokenizeWork *work, const char *text, size_t n, WordSink sink, void *user,
                   Error *err);

/* ---- the image ---- */

typedef struct SourceStamp { /* says which tokenizer.json an image was made from */
    uint64_t bytes;
    int64_t  mtime_ns, ctime_ns;
    uint8_t  sha[32];
} SourceStamp;

/* json: text of tokenizer.json. Appends the image. */
Status image_compile(Buf *image, const char *json, size_t n, const char *what, const SourceStamp *stamp, Error *err);
/* Fills vocab with views into image[n], which must be aligned to 8 bytes. Everything is checked: a vocabulary that it
 * accepts can be used without further looks. */
Status image_open(Vocab *vocab, const char *image, size_t n, const char *what, Error *err);
const SourceStamp *image_stamp(const char *image); /* of an opened image */
void   image_restamp(char *image, size_t n, const SourceStamp *stamp);

/* From the metadata of a GGUF file (owned texts): the tokenizer.json that it stands for; the texts of special tokens by
 * their names ("eos_token"), NULL kept where the file names none; the chat template (ERR_NOT_FOUND: none). */
Status gguf_tokenizer_json(char **json, size_t *n, const char *path, Error *err);
Status gguf_special_tokens(char **texts, const char *const *names, int n, const char *path, Error *err);
Status gguf_chat_template(char **source, size_t *n, const char *path, Error *err);

/* Image of dir/tokenizer.json from the cache, or compiled and stored there; path may be a GGUF file. image:
 * owned, aligned. */
Status cache_take_image(char **image, size_t *n, const char *path, const char *cache_dir, Error *err);

bool bytes_sha(const void *data, size_t n, uint8_t digest[32]); /* false: no memory */
