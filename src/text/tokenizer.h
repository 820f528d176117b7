/* tokenizer.json (byte-level BPE) to ids and back. Formats: docs/spec/models.md section 6.
 * A Tokenizer is read-only after open: any thread, each with its own TokenizerScratch (regex state, buffers). */
#pragma once

#include "base/buf.h"
#include "base/error.h"

#include <stdint.h>

typedef struct Tokenizer Tokenizer;
typedef struct TokenizerScratch TokenizerScratch;

/* dir holds tokenizer.json (and tokenizer_config.json), or is a .gguf file with a tokenizer in it. cache_dir: where the compiled form is kept and found again by
 * size, mtime and hash of the source; NULL = no cache. A corrupt or stale cache is rebuilt, a read-only place
 * ignored. */
Status tokenizer_open(Tokenizer **out, const char *dir, const char *cache_dir, Error *err);
void   tokenizer_close(Tokenizer *t);
/* $XDG_CACHE_HOME/tandem or ~/.cache/tandem; "" when there is none. */
void   tokenizer_default_cache_dir(char *out, size_t size);

Status tokenizer_scratch_open(TokenizerScratch **out, const Tokenizer *t, Error *err);
void   tokenizer_scratch_close(TokenizerScratch *s);

/* Appends the ids of text to *ids (grown with mem_realloc; *n_ids of *capacity used). Added tokens inside the text are
 * recognised (as DESIGN: special tokens included) unless `plain`. Invalid UTF-8: ERR_INPUT naming the byte and its place.
 * More than max_tokens ids, those that were there included: ERR_INPUT ("the prompt is longer than ..."). After a failure
 * *n_ids is as before. */
Status tokenizer_encode(const Tokenizer *t, TokenizerScratch *s, const char *text, size_t n, bool plain,
                        int64_t max_tokens, int32_t **ids, int64_t *n_ids, int64_t *capacity, Error *err);

/* Bytes of one token as they are (may be half a character). special: left out by callers that skip special tokens. */
Str     tokenizer_token_bytes(const Tokenizer *t, int32_t id, bool *special); /* empty for unknown ids */
int32_t tokenizer_vocab_size(const Tokenizer *t);                              /* highest known id + 1 */
int32_t tokenizer_find(const Tokenizer *t, const char *token);                 /* id of a token given as text, -1 */

/* From tokenizer_config.json: "eos_token", "bos_token", "pad_token" or "unk_token" as text, "" when absent or null. */
const char *tokenizer_special(const Tokenizer *t, const char *name);

/* Streaming: holds back an incomplete character. */
typedef struct Detokenizer {
    const Tokenizer *tokenizer;
    bool             skip_special;
    uint8_t          held[4];
    int              n_held;
} Detokenizer;
void detokenizer_init(Detokenizer *d, const Tokenizer *t, bool skip_special);
void detokenizer_push(Detokenizer *d, int32_t id, Buf *out); /* appends complete, valid UTF-8 (bad bytes: U+FFFD) */
void detokenizer_end(Detokenizer *d, Buf *out);               /* what is still held, as U+FFFD */
