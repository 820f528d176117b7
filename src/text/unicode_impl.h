/* UTF-8 and the few character questions that tokenizers and templates ask. Any thread. */
#pragma once

#include "base/buf.h"

#include <stdint.h>

static const uint32_t REPLACEMENT_CHARACTER = 0xFFFD;

/* Looks at the beginning of p[n], n > 0.
 *   > 0   a well-formed sequence of that many bytes; *cp holds its code point
 *     0   all n bytes are the beginning of a sequence that would go on
 *   < 0   that many bytes, negated, are ill formed and become one U+FFFD: Unicode's "maximal subpart", the rule that
 *         Python's errors="replace" follows */
int utf8_next(const char *p, size_t n, uint32_t *cp);

int    utf8_encode(uint32_t cp, char out[4]);       /* bytes written */
void   buf_codepoint(Buf *b, uint32_t cp);
size_t utf8_valid_bytes(const char *text, size_t n); /* offset of the first ill-formed byte, n when there is none */

size_t ascii_bytes(const char *text, size_t n);      /* how many it begins with */

/* The same for text already known to be well formed: no checks. */
uint32_t utf8_read(const char **p);
size_t   utf8_count(const char *text, size_t n); /* characters */

bool char_is_space(uint32_t cp); /* str.isspace() of Python, which strip() and split() go by */

/* True when `text` is unchanged by NFC for a reason that is quickly seen: all its characters lie in blocks where
 * nothing composes, decomposes or combines. False says nothing. */
bool nfc_is_obvious(const char *text, size_t n);

/* What the original tokenizers, whose Unicode is another, make of cp. */
bool     nfc_is_inert(uint32_t cp);      /* NFC leaves it where it stands, and nothing passes it */
uint32_t category_stand_in(uint32_t cp); /* an older character of the same category and length in UTF-8; else cp */

/* NFC of well-formed text, appended to out. Linear in n also for long runs of combining marks. work is scratch. */
typedef struct NfcWork {
    int32_t *codepoints;
    size_t   capacity;
} NfcWork;
Status nfc_append(Buf *out, const char *text, size_t n, NfcWork *work, Error *err);
void   nfc_work_free(NfcWork *work);
