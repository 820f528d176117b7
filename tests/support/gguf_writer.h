/* Makes GGUF files for tests: keys and tensors in the order they are given, laid out as llama.cpp's writer does. */
#pragma once

#include "base/buf.h"

typedef struct GgufWriter {
    Buf      keys, infos, data;
    uint64_t n_keys, n_tensors;
} GgufWriter;

void gguf_writer_open(GgufWriter *w);
void gguf_writer_close(GgufWriter *w);

void gguf_put_u32(GgufWriter *w, const char *key, uint32_t value);
void gguf_put_f32(GgufWriter *w, const char *key, float value);
void gguf_put_bool(GgufWriter *w, const char *key, bool value);
void gguf_put_text(GgufWriter *w, const char *key, const char *value);
void gguf_put_texts(GgufWriter *w, const char *key, const char *const *values, int n);
void gguf_put_ints(GgufWriter *w, const char *key, const int32_t *values, int n);

/* ne: fastest first, as in the file; n_bytes of data, from `data` or zeros. type: GGUF's number. */
void gguf_put_tensor(GgufWriter *w, const char *name, uint32_t type, int n_dims, const int64_t *ne, const void *data,
                     size_t n_bytes);

/* The file so far. */
void gguf_writer_finish(const GgufWriter *w, Buf *out);

/* Little-endian pieces, for files made by hand. */
void gguf_raw_u32(Buf *out, uint32_t v);
void gguf_raw_u64(Buf *out, uint64_t v);
void gguf_raw_text(Buf *out, const char *text);
