/* Writes one safetensors file, atomically. Tensors are laid out by falling element size, and the header is padded
 * to a multiple of 8: so every tensor is aligned for readers that map the file. */
#include "base/buf.h"
#include "base/file.h"
#include "base/memory.h"
#include "tensor/safetensors_impl.h"

#include <inttypes.h>

enum { MAX_WRITTEN = 1 << 16, MAX_WRITTEN_HEADER = 100 * 1000 * 1000 };

/* Bytes of entry e's data; false when its description makes no file. */
static bool data_bytes(const SafetensorsEntry *e, size_t *bytes)
{
    *bytes = dtype_bytes(e->dtype);
    if (*bytes == 0 || e->n_dims < 0 || e->n_dims > SAFETENSORS_MAX_DIMS || !e->name || !*e->name) return false;
    for (int i = 0; i < e->n_dims; i++) {
        if (e->shape[i] < 0 || !size_mul(*bytes, (size_t)e->shape[i], bytes)) return false;
    }
    return true;
}

/* One member of the header; *offset moves behind the tensor. */
static void describe(Buf *header, const SafetensorsEntry *e, size_t bytes, uint64_t *offset)
{
    buf_text(header, header->len == 1 ? "" : ",");
    buf_json_string(header, e->name, strlen(e->name));
    buf_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(e->dtype));
    for (int i = 0; i < e->n_dims; i++) buf_printf(header, "%s%" PRId64, i ? "," : "", e->shape[i]);
    buf_printf(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *offset, *offset + bytes);
    *offset += bytes;
}

/* Fills header and parts[0..n) in the order of the file. */
static Status lay_out(Buf *header, FilePart *parts, const SafetensorsEntry *entries, const void *const *data, int n,
                      Error *err)
{
    uint64_t offset = 0;
    int n_parts = 0;
    buf_text(header, "{");
    for (size_t size = 8; size >= 1; size /= 2) {
        for (int i = 0; i < n; i++) {
            size_t bytes;
            if (!data_bytes(&entries[i], &bytes)) {
                return error_set(err, ERR_UNSUPPORTED, "tensor %.120s cannot be written", entries[i].name);
            }
            if (dtype_bytes(entries[i].dtype) != size) continue;
            describe(header, &entries[i], bytes, &offset);
            parts[n_parts++] = (FilePart){ data[i], bytes };
        }
    }
    buf_text(header, "}");
    while (header->len % 8 != 0 && !header->failed) buf_text(header, " ");
    return header->failed ? error_set(err, ERR_NOMEM, "no memory for a header of %d tensors", n) : OK;
}

static Status write_file(const char *path, Buf *header, FilePart *parts, int n, Error *err)
{
    char length[8];
    for (int i = 0; i < 8; i++) length[i] = (char)((uint64_t)header->len >> (8 * i));
    parts[0] = (FilePart){ length, sizeof length };
    parts[1] = (FilePart){ header->data, header->len };
    return file_write_parts(path, parts, n + 2, err);
}

Status safetensors_write(const char *path, const SafetensorsEntry *entries, const void *const *data, int n, Error *err)
{
    CHECK(n >= 0 && n <= MAX_WRITTEN);
    FilePart *parts = mem_alloc_array((size_t)n + 2, sizeof *parts);
    if (!parts) return error_set(err, ERR_NOMEM, "no memory to write %d tensors", n);
    Buf header;
    buf_init(&header, MAX_WRITTEN_HEADER);
    Status status = lay_out(&header, parts + 2, entries, data, n, err);
    if (status == OK) status = write_file(path, &header, parts, n, err);
    buf_free(&header);
    mem_free(parts);
    return status;
}
