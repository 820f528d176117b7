/* GGUF files for tests. */
#include "support/gguf_writer.h"

enum { ALIGNMENT = 32, MAX_BYTES = 1 << 28 };

void gguf_raw_u32(Buf *out, uint32_t v)
{
    buf_append(out, &v, sizeof v);
}

void gguf_raw_u64(Buf *out, uint64_t v)
{
    buf_append(out, &v, sizeof v);
}

void gguf_raw_text(Buf *out, const char *text)
{
    gguf_raw_u64(out, strlen(text));
    buf_text(out, text);
}

static void pad(Buf *out)
{
    static const char zeros[ALIGNMENT];
    buf_append(out, zeros, (ALIGNMENT - out->len % ALIGNMENT) % ALIGNMENT);
}

void gguf_writer_open(GgufWriter *w)
{
    *w = (GgufWriter){ 0 };
    buf_init(&w->keys, MAX_BYTES);
    buf_init(&w->infos, MAX_BYTES);
    buf_init(&w->data, MAX_BYTES);
}

void gguf_writer_close(GgufWriter *w)
{
    buf_free(&w->keys);
    buf_free(&w->infos);
    buf_free(&w->data);
}

static void begin_key(GgufWriter *w, const char *key, uint32_t type)
{
    gguf_raw_text(&w->keys, key);
    gguf_raw_u32(&w->keys, type);
    w->n_keys++;
}

void gguf_put_u32(GgufWriter *w, const char *key, uint32_t value)
{
    begin_key(w, key, 4);
    gguf_raw_u32(&w->keys, value);
}

void gguf_put_f32(GgufWriter *w, const char *key, float value)
{
    begin_key(w, key, 6);
    buf_append(&w->keys, &value, sizeof value);
}

void gguf_put_bool(GgufWriter *w, const char *key, bool value)
{
    char byte = value;
    begin_key(w, key, 7);
    buf_append(&w->keys, &byte, 1);
}

void gguf_put_text(GgufWriter *w, const char *key, const char *value)
{
    begin_key(w, key, 8);
    gguf_raw_text(&w->keys, value);
}

static void begin_array(GgufWriter *w, const char *key, uint32_t type, int n)
{
    begin_key(w, key, 9);
    gguf_raw_u32(&w->keys, type);
    gguf_raw_u64(&w->keys, (uint64_t)n);
}

void gguf_put_texts(GgufWriter *w, const char *key, const char *const *values, int n)
{
    begin_array(w, key, 8, n);
    for (int i = 0; i < n; i++) gguf_raw_text(&w->keys, values[i]);
}

void gguf_put_ints(GgufWriter *w, const char *key, const int32_t *values, int n)
{
    begin_array(w, key, 5, n);
    buf_append(&w->keys, values, (size_t)n * sizeof *values);
}

void gguf_put_tensor(GgufWriter *w, const char *name, uint32_t type, int n_dims, const int64_t *ne, const void *data,
                     size_t n_bytes)
{
    gguf_raw_text(&w->infos, name);
    gguf_raw_u32(&w->infos, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++) gguf_raw_u64(&w->infos, (uint64_t)ne[i]);
    gguf_raw_u32(&w->infos, type);
    gguf_raw_u64(&w->infos, w->data.len);
    if (data) buf_append(&w->data, data, n_bytes);
    for (size_t i = 0; !data && i < n_bytes; i++) buf_append(&w->data, "", 1);
    pad(&w->data);
    w->n_tensors++;
}

void gguf_writer_finish(const GgufWriter *w, Buf *out)
{
    buf_init(out, MAX_BYTES);
    buf_text(out, "GGUF");
    gguf_raw_u32(out, 3);
    gguf_raw_u64(out, w->n_tensors);
    gguf_raw_u64(out, w->n_keys);
    buf_append(out, w->keys.data, w->keys.len);
    buf_append(out, w->infos.data, w->infos.len);
    pad(out);
    buf_append(out, w->data.data, w->data.len);
}
