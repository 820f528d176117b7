/* A GGUF file (version 2 or 3): metadata and tensors, fully checked before anything is read from it.
 *
 * Format and checks: docs/spec/quantization.md section 4.1. Memory is bounded by what is really in the file's header,
 * never by a number that stands in it: at most 32 MB of header, 65536 keys, 65536 tensors. Data is read by pread into
 * memory of the caller. Any thread may read after open. */
#pragma once

#include "base/buf.h"
#include "base/error.h"
#include "tensor/quant.h"

enum { GGUF_MAX_DIMS = 4, GGUF_NAME_BYTES = 64 };

typedef enum GgufType { /* the numbers are the file's */
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
} GgufType;

typedef struct GgufTensor {
    char        name[GGUF_NAME_BYTES];
    const char *type_name;            /* "Q4_K" */
    QuantFormat format;               /* QUANT_NONE when we cannot compute with it; an error only if it is needed */
    int         n_dims;
    int64_t     shape[GGUF_MAX_DIMS]; /* slowest first, as everywhere here: the file's order turned round */
    int         part;                 /* which file, 0 when there is one */
    uint64_t    offset, bytes;        /* absolute place in it */
} GgufTensor;

typedef struct Gguf Gguf;

/* "....gguf", and no directory. */
bool gguf_is_path(const char *path);

/* Of a file in parts (x-00001-of-00003.gguf) any part may be named: all are opened, metadata are the first one's. */
Status gguf_open(Gguf **out, const char *path, Error *err);
void   gguf_close(Gguf *g);

const char *gguf_path(const Gguf *g); /* of the first part */

int               gguf_count(const Gguf *g);
const GgufTensor *gguf_at(const Gguf *g, int i);                /* in the order of the file's data */
const GgufTensor *gguf_find(const Gguf *g, const char *name);   /* NULL: absent */

/* Reads n bytes at an absolute offset of a part. */
Status gguf_read(const Gguf *g, int part, uint64_t offset, void *out, size_t n, Error *err);
/* The same past the page cache: data_file_stage(). */
Status gguf_stage(const Gguf *g, int part, uint64_t offset, size_t n, void *staging, void **at, Error *err);

/* ---- metadata ----
 *
 * A getter on a missing key leaves *value as it is; on another type or range it fills err with a sentence that names
 * file and key. Texts and arrays are borrowed from the Gguf. */

bool   gguf_has(const Gguf *g, const char *key);
Status gguf_get_int(const Gguf *g, const char *key, int64_t min, int64_t max, int64_t *value, Error *err);
Status gguf_get_double(const Gguf *g, const char *key, double min, double max, double *value, Error *err); /* finite */
Status gguf_get_bool(const Gguf *g, const char *key, bool *value, Error *err);
Status gguf_get_string(const Gguf *g, const char *key, Str *value, Error *err);

typedef struct GgufArray {
    GgufType       type; /* of the elements */
    uint64_t       n;
    const uint8_t *data;
} GgufArray;
Status gguf_get_array(const Gguf *g, const char *key, GgufArray *value, Error *err);

/* Element i of an array of whole numbers or truths; false when there is none, or one beyond int64. */
bool gguf_array_int(const GgufArray *a, uint64_t i, int64_t *value);

/* Walking an array of strings: GgufTexts w = gguf_texts(&array); while (gguf_next_text(&w, &text)) ... */
typedef struct GgufTexts {
    const uint8_t *at;
    uint64_t       left; /* none when the array holds something else */
} GgufTexts;
static inline GgufTexts gguf_texts(const GgufArray *a)
{
    return (GgufTexts){ a->data, a->type == GGUF_STRING ? a->n : 0 };
}
bool gguf_next_text(GgufTexts *walk, Str *text);
