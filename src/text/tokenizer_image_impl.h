/* Layout of the compiled tokenizer, for those who write and read it. */
#pragma once

#include "text/tokenizer_impl.h"

enum { IMAGE_MAGIC = 0x6B6F7454 /* "Ttok", so another byte order shows too */, IMAGE_VERSION = 2 };

typedef struct ImageHeader {
    uint8_t     sha[32]; /* of everything behind this field */
    uint32_t    magic, version;
    SourceStamp source;
    uint32_t    n_ids, n_merges, n_steps, nfc, blob_bytes, unused;
} ImageHeader;

void image_append(Buf *image, const void *data, size_t n); /* padded to a multiple of 8 */
bool image_seal(char *image, size_t n);                    /* fills in the checksum; false: no memory */
