/* Safetensors: a file, or a directory of an index and a file. Whatever opens keeps its promises: every tensor is found
 * by its name and can be read to its last byte.
 *
 * Input: two bytes with the length of the index (0: a file alone), the index, the file. */
#include "base/memory.h"
#include "fuzz/fuzz.h"
#include "tensor/safetensors.h"

static void use(const Safetensors *st)
{
    Error err = { .status = OK };
    for (int i = 0; i < safetensors_count(st); i++) {
        const SafetensorsEntry *e = safetensors_at(st, i);
        CHECK(safetensors_find(st, e->name) == e);
        CHECK(e->n_dims <= SAFETENSORS_MAX_DIMS);
        if (e->bytes == 0) continue;
        char *data = mem_alloc(e->bytes);
        CHECK(data && safetensors_read(st, e, 0, data, e->bytes, &err) == OK);
        mem_free(data);
    }
    safetensors_find(st, "no such tensor");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Safetensors *st;
    if (n < 2) return 0;
    size_t n_index = data[0] | (size_t)data[1] << 8;
    n -= 2;
    if (n_index > n) n_index = n;
    const uint8_t *index = data + 2, *file = index + n_index;
    const char *path = scratch_file("a.safetensors", file, n - n_index);
    if (n_index) {
        scratch_file("model.safetensors.index.json", index, n_index);
        path = scratch_dir();
    }
    Error err = { .status = OK };
    Status s = safetensors_open(&st, path, &err);
    CHECK(s == err.status && (s == OK) == (st != NULL));
    if (!s) use(st);
    safetensors_close(st);
    return 0;
}
