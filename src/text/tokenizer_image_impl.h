/* Layout of the compiled tokenizer, for those who write and read it. */
#pragma once

#include "text/tokenizer_impl.h"

enum { IMAGE_MAGIC = 0x6B6F7454 /* "Ttok", so another byte order shows too */, IMAGE_VERSION = 3 };

typedef struct ImageHeader {
    uint64_t    checksum[2]; /* of everything behind this field */
    uint32_t    magic, version;
    SourceStamp source;
    uint32_t    n_ids, n_merges, n_pairs, n_words, n_steps, nfc, blob_bytes, unused;
} ImageHeader;

void image_append(Buf *image, const void *data, size_t n); /* and image_align() */
void image_append_zeros(Buf *image, size_t n);             /* and image_align() */
void image_align(Buf *image);                              /* to a multiple of 8 */
void image_seal(char *image, size_t n);                    /* fills in the checksum */
/* Views into the sections; false when they do not fill the image exactly. Looks at no contents. */
bool image_map(Vocab *vocab, const char *image, size_t n);
