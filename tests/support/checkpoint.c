/* Checkpoints for tests, see checkpoint.h. */
#include "support/checkpoint.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/memory.h"
#include "support/encode.h"
#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- reading ---- */

static void set_name(TestTensor *t, const char *name)
{
    snprintf(t->name, sizeof t->name, "%s", name);
    t->entry.name = t->name;
}

static Status read_tensors(TestCheckpoint *c, const Safetensors *st, Error *err)
{
    Status s = OK;
    CHECK(safetensors_count(st) <= CHECKPOINT_MAX_TENSORS);
    for (int i = 0; i < safetensors_count(st) && !s; i++) {
        TestTensor *t = &c->tensor[c->n++];
        t->entry = *safetensors_at(st, i);
        set_name(t, t->entry.name);
        t->data = mem_alloc(t->entry.bytes);
        if (!t->data) return error_set(err, ERR_NOMEM, "no memory for %s", t->name);
        s = safetensors_read(st, safetensors_at(st, i), 0, t->data, t->entry.bytes, err);
    }
    return s;
}

Status test_checkpoint_open(TestCheckpoint **out, const char *below, Error *err)
{
    TestCheckpoint *c = *out = mem_alloc(sizeof *c);
    if (!c) return error_set(err, ERR_NOMEM, "no memory for a checkpoint");
    Safetensors *st = NULL;
    Status s = source_path(c->source_dir, sizeof c->source_dir, below, err);
    snprintf(c->dir, sizeof c->dir, "/tmp/tandem-test-XXXXXX");
    if (!s && !mkdtemp(c->dir)) s = error_set(err, ERR_IO, "cannot make %s", c->dir);
    if (!s) s = safetensors_open(&st, c->source_dir, err);
    if (!s) s = read_tensors(c, st, err);
    safetensors_close(st);
    return s;
}

static void remove_files(const TestCheckpoint *c)
{
    char path[512];
    static const char *const names[] = { "config.json", "model.safetensors", "model.safetensors.index.json" };
    for (int i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", c->dir, names[i]);
        unlink(path);
    }
    for (int i = 0; i < 16; i++) {
        snprintf(path, sizeof path, "%s/shard-%d.safetensors", c->dir, i);
        unlink(path);
    }
}

void test_checkpoint_close(TestCheckpoint *c)
{
    if (!c) return;
    remove_files(c);
    rmdir(c->dir);
    for (int i = 0; i < c->n; i++) mem_free(c->tensor[i].data);
    mem_free(c);
}

/* ---- changing ---- */

static int place_of(const TestCheckpoint *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->tensor[i].name, name) == 0) return i;
    return -1;
}

TestTensor *test_checkpoint_find(TestCheckpoint *c, const char *name)
{
    int i = place_of(c, name);
    CHECK(i >= 0);
    return &c->tensor[i];
}

static size_t count_of(const SafetensorsEntry *e)
{
    size_t n = 1;
    for (int i = 0; i < e->n_dims; i++) n *= (size_t)e->shape[i];
    return n;
}

TestTensor *test_checkpoint_add(TestCheckpoint *c, const char *name, DType dtype, int n_dims, const int64_t *shape)
{
    CHECK(c->n < CHECKPOINT_MAX_TENSORS);
    TestTensor *t = &c->tensor[c->n++];
    *t = (TestTensor){ .entry = { .dtype = dtype, .n_dims = n_dims } };
    memcpy(t->entry.shape, shape, (size_t)n_dims * sizeof *shape);
    set_name(t, name);
    t->entry.bytes = count_of(&t->entry) * dtype_bytes(dtype);
    t->data = mem_alloc(t->entry.bytes);
    CHECK(t->data);
    return t;
}

void test_checkpoint_remove(TestCheckpoint *c, const char *name)
{
    int i = place_of(c, name);
    CHECK(i >= 0);
    mem_free(c->tensor[i].data);
    c->tensor[i] = c->tensor[--c->n];
    c->tensor[i].entry.name = c->tensor[i].name;
}

void test_checkpoint_rename(TestCheckpoint *c, const char *from, const char *to)
{
    set_name(test_checkpoint_find(c, from), to);
}

void test_checkpoint_convert(TestTensor *t, DType dtype)
{
    size_t n = count_of(&t->entry);
    float *wide = mem_alloc_array(n, sizeof *wide);
    CHECK(wide);
    dtype_to_f32(wide, t->data, t->entry.dtype, n);
    mem_free(t->data);
    t->entry.dtype = dtype;
    t->entry.bytes = n * dtype_bytes(dtype);
    if (dtype == DT_F32) {
        t->data = wide;
        return;
    }
    uint16_t *narrow = t->data = mem_alloc_array(n, sizeof *narrow);
    CHECK(narrow);
    for (size_t i = 0; i < n; i++) narrow[i] = dtype == DT_F16 ? f32_to_f16(wide[i]) : f32_to_bf16(wide[i]);
    mem_free(wide);
}

/* ---- writing ---- */

static Status write_shard(const TestCheckpoint *c, int shard, int n_shards, const char *file, Buf *map, Error *err)
{
    static SafetensorsEntry entries[CHECKPOINT_MAX_TENSORS];
    static const void *data[CHECKPOINT_MAX_TENSORS];
    char path[512];
    int n = 0;
    for (int i = shard; i < c->n; i += n_shards) { /* neighbours fall into different files */
        entries[n] = c->tensor[i].entry;
        data[n++] = c->tensor[i].data;
        buf_printf(map, "%s\"%s\": \"%s\"", map->len ? ",\n" : "", c->tensor[i].name, file);
    }
    snprintf(path, sizeof path, "%s/%s", c->dir, file);
    return safetensors_write(path, entries, data, n, err);
}

static Status write_index(const TestCheckpoint *c, const Buf *map, Error *err)
{
    char path[512];
    uint64_t total = 0;
    for (int i = 0; i < c->n; i++) total += c->tensor[i].entry.bytes;
    Buf index;
    buf_init(&index, 1 << 20);
    buf_printf(&index, "{\"metadata\": {\"total_size\": %llu}, \"weight_map\": {%s}}", (unsigned long long)total,
               map->data);
    CHECK(!index.failed);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", c->dir);
    Status s = file_write_atomic(path, index.data, index.len, err);
    buf_free(&index);
    return s;
}

static Status copy_config(const TestCheckpoint *c, Error *err)
{
    char from[4200], to[512], *text = NULL;
    size_t n = 0;
    snprintf(from, sizeof from, "%s/config.json", c->source_dir);
    snprintf(to, sizeof to, "%s/config.json", c->dir);
    Status s = file_read(from, 1 << 20, &text, &n, err);
    if (!s) s = file_write_atomic(to, text, n, err);
    mem_free(text);
    return s;
}

Status test_checkpoint_write(const TestCheckpoint *c, int n_shards, Error *err)
{
    remove_files(c);
    Buf map;
    buf_init(&map, 1 << 20);
    Status s = copy_config(c, err);
    for (int i = 0; i < n_shards && !s; i++) {
        char file[64] = "model.safetensors";
        if (n_shards > 1) snprintf(file, sizeof file, "shard-%d.safetensors", i);
        s = write_shard(c, i, n_shards, file, &map, err);
    }
    if (!s && n_shards > 1) s = write_index(c, &map, err);
    buf_free(&map);
    return s;
}
