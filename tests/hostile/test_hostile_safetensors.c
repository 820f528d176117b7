/* Two hundred and more hostile checkpoints of safetensors: headers, ranges, names, shards, parts of quantised matrices, and
 * what a file system can put in a file's place. */
#include "hostile/refuse.h"

#include "base/file.h"
#include "base/memory.h"
#include "tensor/safetensors.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_ROWS = 200 };

/* A tensor of a header: what stands in it, and where its data lie. */
typedef struct Row {
    char     name[700], dtype[80], shape[200], range[120];
    char     value[256]; /* instead of the three, unless empty */
    uint64_t first, bytes;
} Row;

typedef struct World {
    TempDir dir;
    Row     row[MAX_ROWS];
    int     n;
    Buf     data;
} World;

static World world;

static const char *file(const char *name)
{
    return temp_path(&world.dir, name);
}

/* ---- a checkpoint that can be spoilt ---- */

static void set_range(Row *r, uint64_t first, uint64_t end)
{
    snprintf(r->range, sizeof r->range, "[%llu,%llu]", (unsigned long long)first, (unsigned long long)end);
}

static void read_row(Row *r, const Safetensors *st, const SafetensorsEntry *e)
{
    Error err = { 0 };
    char data[1 << 17];
    size_t at = 0;
    *r = (Row){ .first = world.data.len, .bytes = e->bytes };
    snprintf(r->name, sizeof r->name, "%s", e->name);
    snprintf(r->dtype, sizeof r->dtype, "\"%s\"", e->dtype_text);
    at += (size_t)snprintf(r->shape, sizeof r->shape, "[");
    for (int i = 0; i < e->n_dims; i++) at += (size_t)snprintf(r->shape + at, sizeof r->shape - at, "%s%lld", i ? "," : "", (long long)e->shape[i]);
    snprintf(r->shape + at, sizeof r->shape - at, "]");
    set_range(r, r->first, r->first + r->bytes);
    assert_true(e->bytes <= sizeof data);
    assert_int_equal(safetensors_read(st, e, 0, data, e->bytes, &err), OK);
    buf_append(&world.data, data, e->bytes);
}

/* The tensors of a model of the source tree; its config.json goes into the directory. */
static void begin(const char *below)
{
    Safetensors *st;
    Error err = { 0 };
    char from[512], *text;
    size_t n;
    snprintf(from, sizeof from, "%s/config.json", source_tree(below));
    assert_int_equal(file_read(from, 1 << 20, &text, &n, &err), OK);
    hostile_write(file("config.json"), text, n);
    mem_free(text);
    snprintf(from, sizeof from, "%s/model.safetensors", source_tree(below));
    if (safetensors_open(&st, from, &err)) fail_msg("%s", err.text);
    world.n = 0;
    buf_free(&world.data);
    buf_init(&world.data, 1 << 24);
    for (int i = 0; i < safetensors_count(st); i++) read_row(&world.row[world.n++], st, safetensors_at(st, i));
    safetensors_close(st);
}

static void begin_plain(void)
{
    begin("tests/data/golden/llama");
}

static Row *row(const char *name)
{
    for (int i = 0; i < world.n; i++)
        if (strcmp(world.row[i].name, name) == 0) return &world.row[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void header_of(Buf *out, int first, int step)
{
    uint64_t at = 0;
    buf_init(out, 1 << 26);
    buf_text(out, "{");
    for (int i = first; i < world.n; i += step) {
        Row r = world.row[i];
        if (step > 1) set_range(&r, at, at + r.bytes);
        at += r.bytes;
        buf_printf(out, "%s\"%s\":", i > first ? "," : "", r.name);
        if (*r.value) buf_text(out, r.value);
        else buf_printf(out, "{\"dtype\":%s,\"shape\":%s,\"data_offsets\":%s}", r.dtype, r.shape, r.range);
    }
    buf_text(out, "}");
}

static void put_file(const char *path, uint64_t announced, const void *header, size_t n_header, const void *data, size_t n_data)
{
    Buf b;
    buf_init(&b, 1 << 26);
    for (int i = 0; i < 8; i++) buf_append(&b, &(char){ (char)(announced >> 8 * i) }, 1);
    buf_append(&b, header, n_header);
    buf_append(&b, data, n_data);
    assert_false(b.failed);
    hostile_write(path, b.data, b.len);
    buf_free(&b);
}

static void put_model(void)
{
    Buf header;
    header_of(&header, 0, 1);
    put_file(file("model.safetensors"), header.len, header.data, header.len, world.data.data, world.data.len);
    buf_free(&header);
}

/* A header alone, or with some bytes of data. */
static void put_header(const char *header, size_t n_data)
{
    char *data = mem_alloc(n_data + 1);
    put_file(file("model.safetensors"), strlen(header), header, strlen(header), data, n_data);
    mem_free(data);
}

static void refuse_model(const char *what, const char *name)
{
    put_model();
    refuse(world.dir.path, "%.120s: %.80s", what, name);
}

/* ---- the header of one tensor ---- */

static const char *const victims[] = { "model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight", "model.norm.weight" };

static void wrong_types(void **state)
{
    static const char *const types[] = { "\"F32\"", "\"F64\"", "\"I8\"", "\"BOOL\"", "\"F4\"", "\"Q9\"", "\"\"", "\"bf16\"", "null", "16", "[\"BF16\"]",
                                         "\"BF16\\u0000\"", "\"F8_E4M3\"", "\"U16\"", "\"I16\"" };
    for (int v = 0; v < COUNT(victims); v++)
        for (int i = 0; i < COUNT(types); i++) {
            begin_plain();
            snprintf(row(victims[v])->dtype, sizeof row(victims[v])->dtype, "%s", types[i]);
            refuse_model(types[i], victims[v]);
        }
}

static void wrong_shapes(void **state)
{
    static const char *const shapes[] = { "[]", "[0]", "[-1,64]", "[64,-64]", "[64.0,64]", "[6e1,64]", "[0x40,64]", "[064,64]", "\"[64,64]\"", "null", "64",
                                          "[9223372036854775807,2]", "[4294967296,4294967296]", "[18446744073709551616]", "[1099511627777,1]", "[[64,64]]",
                                          "[1,1,1,1,1,1,1,1,4096]", "[64,64,]", "[,64]", "[64 64]", "{}", "[63,64]", "[64,64,1]", "[true]", "[64" };
    for (int v = 1; v < COUNT(victims); v++)
        for (int i = 0; i < COUNT(shapes); i++) {
            begin_plain();
            snprintf(row(victims[v])->shape, sizeof row(victims[v])->shape, "%s", shapes[i]);
            refuse_model(shapes[i], victims[v]);
        }
}

static void wrong_ranges(void **state)
{
    static const char *const ranges[] = { "[0,0]", "[1,0]", "[-1,1]", "[0]", "[]", "[0,1,2]", "null", "\"0,1\"", "[0.0,1.0]", "[9223372036854775806,9223372036854775807]",
                                          "[18446744073709551615,18446744073709551615]", "[0,9223372036854775807]", "[1e3,2e3]", "[[0,1]]", "{}" };
    for (int v = 0; v < COUNT(victims); v++)
        for (int i = 0; i < COUNT(ranges); i++) {
            begin_plain();
            snprintf(row(victims[v])->range, sizeof row(victims[v])->range, "%s", ranges[i]);
            refuse_model(ranges[i], victims[v]);
        }
}

/* Ranges of the right length in the wrong places. */
static void moved_ranges(void **state)
{
    static const int64_t by[] = { -1, 1, -2, 128, 4096, (int64_t)1 << 40 };
    for (int i = 0; i < COUNT(by); i++) {
        begin_plain();
        Row *r = row(victims[1]);
        set_range(r, r->first + (uint64_t)by[i], r->first + r->bytes + (uint64_t)by[i]);
        refuse_model("moved", victims[1]);
    }
    begin_plain(); /* two tensors in one place */
    Row *q = row("model.layers.0.self_attn.q_proj.weight"), *o = row("model.layers.0.self_attn.o_proj.weight");
    snprintf(o->range, sizeof o->range, "%s", q->range);
    refuse_model("one place for two", o->name);
}

static void wrong_values(void **state)
{
    static const char *const values[] = { "null", "[]", "{}", "1", "\"x\"", "{\"dtype\":\"BF16\"}", "{\"dtype\":\"BF16\",\"shape\":[64]}",
                                          "{\"shape\":[64],\"data_offsets\":[0,128]}", "{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[0,128],\"x\":1}",
                                          "{\"dtype\":\"BF16\",\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[0,128]}", "{\"DTYPE\":\"BF16\"}", "{", "{}}" };
    for (int i = 0; i < COUNT(values); i++) {
        begin_plain();
        snprintf(row(victims[2])->value, sizeof row(victims[2])->value, "%s", values[i]);
        refuse_model(values[i], victims[2]);
    }
}

/* ---- names ---- */

static void wrong_names(void **state)
{
    static const char *const names[] = { "", "\\u0000", "a\\nb", "\xff", "\xed\xa0\x80", "\\ud800", "\\x41", "../../etc/passwd", "model.norm.weight ",
                                         "model.layers.99.input_layernorm.weight", "model.layers.-1.input_layernorm.weight", "Model.norm.weight",
                                         "model.layers.1.self_attn.q_proj.weight", "model.norm.bias", "%s%s%s%n" };
    for (int i = 0; i < COUNT(names); i++) {
        begin_plain();
        snprintf(row("model.norm.weight")->name, sizeof world.row[0].name, "%s", names[i]);
        refuse_model("named", names[i]);
    }
    begin_plain();
    memset(row("model.norm.weight")->name, 'x', 600);
    refuse_model("a name of", "600 bytes");
}

/* A tensor that is not there, or one too many. */
static void missing_and_spare(void **state)
{
    begin_plain();
    const int n = world.n;
    for (int i = 0; i < n; i += 3) {
        begin_plain();
        char name[700];
        snprintf(name, sizeof name, "%s", world.row[i].name);
        snprintf(world.row[i].name, sizeof world.row[i].name, "spare.weight");
        refuse_model("renamed away", name);
    }
}

/* ---- whole headers ---- */

static void hostile_headers(void **state)
{
    static const struct {
        const char *header;
        size_t      n_data;
    } cases[] = { { "", 0 }, { " {}", 0 }, { "{}", 0 }, { "[]", 0 }, { "null", 0 }, { "\"x\"", 0 }, { "{", 0 }, { "{}}", 0 }, { "{}{}", 0 }, { "{} x", 0 }, { "{\"a\"}", 0 },
                  { "{\"a\":}", 0 }, { "{,}", 0 }, { "{a:1}", 0 }, { "{'a':1}", 0 }, { "{\"a", 0 }, { "{\"a\\", 0 }, { "\xef\xbb\xbf{}", 0 }, { "{/**/}", 0 },
                  { "{\"__metadata__\":[]}", 0 }, { "{\"__metadata__\":1}", 0 }, { "{\"__metadata__\":{\"a\":1}}", 0 }, { "{\"__metadata__\":{\"a\":{\"b\":{}}}}", 0 },
                  { "{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0 }, { "{\"__metadata__\":{},\"__metadata__\":{}}", 0 }, { "{\"__metadata__\":{\"a\":\"b\"", 0 },
                  { "{}", 1 }, { "{}", 4096 } };
    begin_plain();
    for (int i = 0; i < COUNT(cases); i++) {
        put_header(cases[i].header, cases[i].n_data);
        refuse(world.dir.path, "header %s and %zu bytes", cases[i].header, cases[i].n_data);
    }
}

/* Brackets, digits, names and members without end: a few megabytes each, and the longest header there may be. */
static void endless_headers(void **state)
{
    static const struct {
        const char *start;
        char        fill;
    } cases[] = { { "{\"a\":{\"shape\":", '[' }, { "{\"a\":", '{' }, { "{\"", 'x' }, { "{\"", '\\' }, { "{", ' ' }, { "{\"a\":{\"shape\":[", '9' }, { "{\"__metadata__\":{\"k\":\"", 'x' },
                  { "{", 0 }, { "{\"__metadata__\":", '{' }, { "{\"__metadata__\":", '[' } };
    enum { MANY = 24 << 20, SOME = 3 << 20 };
    char *text = malloc(MANY);
    begin_plain();
    for (int i = 0; i < COUNT(cases); i++) {
        const size_t n = i < 4 ? MANY : SOME;
        memset(text, cases[i].fill, n);
        memcpy(text, cases[i].start, strlen(cases[i].start));
        put_file(file("model.safetensors"), n, text, n, "", 0);
        refuse(world.dir.path, "%s and then %c for ever", cases[i].start, cases[i].fill ? cases[i].fill : '0');
    }
    size_t used = (size_t)sprintf(text, "{");
    for (int i = 0; i < 60000; i++) used += (size_t)sprintf(text + used, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "", i);
    used += (size_t)sprintf(text + used, "}");
    put_file(file("model.safetensors"), used, text, used, "", 0);
    refuse(world.dir.path, "60000 tensors of nothing");
    used = (size_t)sprintf(text, "{\"__metadata__\":{");
    for (int i = 0; i < 70000; i++) used += (size_t)sprintf(text + used, "%s\"%d\":\"\"", i ? "," : "", i);
    used += (size_t)sprintf(text + used, "}}");
    put_file(file("model.safetensors"), used, text, used, "", 0);
    refuse(world.dir.path, "70000 members of metadata");
    free(text);
}

/* ---- lengths ---- */

static void lying_lengths(void **state)
{
    static const uint64_t lengths[] = { 0, 1, 2, 7, 1000, 1 << 20, 24 << 20, (24 << 20) + 1, 100000000, (uint64_t)1 << 31, (uint64_t)1 << 32, (uint64_t)1 << 62,
                                        (uint64_t)1 << 63, UINT64_MAX - 8, UINT64_MAX - 7, UINT64_MAX };
    begin_plain();
    for (int i = 0; i < COUNT(lengths); i++) {
        put_file(file("model.safetensors"), lengths[i], "{}    ", 6, "", 0);
        refuse(world.dir.path, "a header of %llu bytes", (unsigned long long)lengths[i]);
    }
    for (int n = 0; n < 8; n++) {
        hostile_write(file("model.safetensors"), "\2\0\0\0\0\0\0", (size_t)n);
        refuse(world.dir.path, "a file of %d bytes", n);
    }
    static const uint64_t announced[] = { 2, 24 << 20, (uint64_t)1 << 39 };
    for (int i = 0; i < COUNT(announced); i++) { /* holes: no blocks on the disk */
        put_file(file("model.safetensors"), announced[i], "{}", 2, "", 0);
        assert_int_equal(truncate(file("model.safetensors"), (off_t)1 << 40), 0);
        refuse(world.dir.path, "a terabyte of nothing, header %llu", (unsigned long long)announced[i]);
    }
}

static void cut_files(void **state)
{
    begin_plain();
    put_model();
    struct stat st;
    char path[512];
    snprintf(path, sizeof path, "%s", file("model.safetensors"));
    assert_int_equal(stat(path, &st), 0);
    for (int i = 1; i < 20; i++) {
        put_model();
        assert_int_equal(truncate(path, st.st_size * i / 20), 0);
        refuse(world.dir.path, "cut to %d of 20 parts", i);
    }
    put_model();
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    refuse(world.dir.path, "a byte too short");
    put_model();
    assert_int_equal(truncate(path, st.st_size + 1), 0);
    refuse(world.dir.path, "a byte too long");
    for (int i = 0; i < 10; i++) {
        put_model();
        refuse_cut_later(world.dir.path, path, (long)(st.st_size * i / 10), "cut to %d of 10 parts while it is loaded", i);
    }
}

/* ---- numbers ---- */

static void put_bf16(const char *name, int64_t i, uint16_t bits)
{
    memcpy(world.data.data + row(name)->first + 2 * (size_t)i, &bits, sizeof bits);
}

static void bad_numbers(void **state)
{
    static const uint16_t bits[] = { 0x7fc0, 0xffc0, 0x7f80, 0xff80, 0x7f81 };
    static const char *const names[] = { "model.norm.weight", "model.layers.2.post_attention_layernorm.weight" };
    for (int v = 0; v < COUNT(names); v++)
        for (int i = 0; i < COUNT(bits); i++) {
            begin_plain();
            put_bf16(names[v], 7, bits[i]);
            put_model();
            refuse(world.dir.path, "%s holds %04x", names[v], bits[i]);
        }
}

/* ---- shards ---- */

static void put_shards(const char *index)
{
    unlink(file("model.safetensors"));
    for (int k = 0; k < 2; k++) {
        Buf header, data;
        char name[32];
        snprintf(name, sizeof name, "m-%d.safetensors", k + 1);
        header_of(&header, k, 2);
        buf_init(&data, 1 << 24);
        for (int i = k; i < world.n; i += 2) buf_append(&data, world.data.data + world.row[i].first, world.row[i].bytes);
        put_file(file(name), header.len, header.data, header.len, data.data, data.len);
        buf_free(&header);
        buf_free(&data);
    }
    hostile_write(file("model.safetensors.index.json"), index, strlen(index));
}

/* A full index; tensor number `odd` is said to be in the file `where`, or called `called`. */
static void full_index(Buf *out, int odd, const char *where, const char *called)
{
    buf_init(out, 1 << 20);
    buf_text(out, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (int i = 0; i < world.n; i++) {
        char own[32];
        snprintf(own, sizeof own, "\"m-%d.safetensors\"", i % 2 + 1);
        buf_printf(out, "%s\"%s\":%s", i ? "," : "", i == odd && called ? called : world.row[i].name, i == odd && where ? where : own);
    }
    buf_text(out, "}}");
}

static void refuse_index(const char *where, const char *called, const char *what)
{
    Buf index;
    full_index(&index, 5, where, called);
    put_shards(index.data);
    refuse(world.dir.path, "index: %s", what);
    buf_free(&index);
}

static void hostile_indexes(void **state)
{
    static const char *const places[] = { "\"m-1.safetensors\"", "\"m-3.safetensors\"", "\"../m-2.safetensors\"", "\"/etc/passwd\"", "\"\"", "\"m-2.bin\"", "null", "2", "{}", "[]",
                                          "\"m-2.safetensors\\u0000\"", "\"./m-2.safetensors\"", "\"a\\\\m-2.safetensors\"", "\"..safetensors\"", "\"config.json\"" };
    static const char *const texts[] = { "", "{", "{}", "[]", "null", "{\"weight_map\":{}}", "{\"weight_map\":[]}", "{\"weight_map\":", "{\"weight_map\":{\"a\":\"m-1.safetensors\"}}",
                                         "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-2.safetensors\"}}", "version https://git-lfs.github.com/spec/v1\n" };
    Buf good;
    begin_plain();
    full_index(&good, -1, NULL, NULL);
    put_shards(good.data);
    accept_model(world.dir.path, "two shards");
    for (int i = 0; i < COUNT(places); i++) refuse_index(places[i], NULL, places[i]);
    refuse_index(NULL, "model.nobody.weight", "a name that no shard has");
    refuse_index(NULL, "model.norm.weight", "a name that stands there twice");
    for (int i = 0; i < COUNT(texts); i++) {
        put_shards(texts[i]);
        refuse(world.dir.path, "index: %s", texts[i]);
    }
    put_shards(good.data);
    unlink(file("m-2.safetensors"));
    refuse(world.dir.path, "a shard is missing");
    hostile_write(file("m-2.safetensors"), "", 0);
    refuse(world.dir.path, "a shard is empty");
    put_shards(good.data);
    unlink(file("m-2.safetensors"));
    assert_int_equal(link(file("m-1.safetensors"), file("m-2.safetensors")), 0);
    refuse(world.dir.path, "a shard twice under two names");
    unlink(file("m-2.safetensors"));
    unlink(file("model.safetensors.index.json"));
    put_shards("x");
    unlink(file("model.safetensors.index.json"));
    hostile_write(file("m-3.safetensors"), "\2\0\0\0\0\0\0\0{}", 10);
    Buf header;
    header_of(&header, 1, 2);
    buf_free(&header);
    unlink(file("m-3.safetensors"));
    assert_int_equal(link(file("m-1.safetensors"), file("m-3.safetensors")), 0);
    refuse(world.dir.path, "no index, and two files with the same tensors");
    buf_free(&good);
}

/* Depth and size without end. */
static void endless_indexes(void **state)
{
    enum { SOME = 8 << 20, MANY = 23 << 20 };
    static const struct {
        const char *start;
        char        fill;
        size_t      n;
    } cases[] = { { "{\"metadata\":", '[', SOME }, { "{\"metadata\":", '{', SOME }, { "{\"weight_map\":{\"", 'x', MANY }, { "{\"", 'x', MANY }, { "{\"metadata\":", '1', MANY },
                  { "", ' ', MANY }, { "{\"metadata\":\"", 'x', (24 << 20) + 1 } };
    char *text = malloc(MANY + (2 << 20));
    begin_plain();
    for (int i = 0; i < COUNT(cases); i++) {
        put_shards("x");
        memset(text, cases[i].fill, cases[i].n);
        memcpy(text, cases[i].start, strlen(cases[i].start));
        hostile_write(file("model.safetensors.index.json"), text, cases[i].n);
        refuse(world.dir.path, "an index of %zu bytes: %s%c...", cases[i].n, cases[i].start, cases[i].fill);
    }
    size_t used = (size_t)sprintf(text, "{\"weight_map\":{");
    for (int i = 0; used < SOME; i++) used += (size_t)sprintf(text + used, "%s\"%d\":\"m-1.safetensors\"", i ? "," : "", i);
    used += (size_t)sprintf(text + used, "}}");
    hostile_write(file("model.safetensors.index.json"), text, used);
    refuse(world.dir.path, "an index of hundreds of thousands of tensors");
    used = (size_t)sprintf(text, "{\"weight_map\":{");
    for (int i = 0; i < 1200; i++) used += (size_t)sprintf(text + used, "%s\"%d\":\"%d.safetensors\"", i ? "," : "", i, i);
    used += (size_t)sprintf(text + used, "}}");
    hostile_write(file("model.safetensors.index.json"), text, used);
    refuse(world.dir.path, "an index of 1200 files");
    free(text);
    unlink(file("model.safetensors.index.json"));
    unlink(file("m-1.safetensors"));
    unlink(file("m-2.safetensors"));
    unlink(file("m-3.safetensors"));
}

/* ---- parts of quantised matrices ---- */

/* A published layout, a part of layer 1's q_proj, and what is done to it. */
typedef struct PartCase {
    const char *layout, *part;
    const char *dtype, *shape; /* NULL: as it is. The data stay, or are cut or filled to fit */
    int         byte;          /* fills the data; -1 leaves them */
    const char *renamed;       /* NULL, or the part's new name */
} PartCase;

static const PartCase part_cases[] = {
    { "modelopt_nvfp4", "weight", "\"I8\"", NULL, -1, NULL },
    { "modelopt_nvfp4", "weight", NULL, "[4096]", -1, NULL },
    { "modelopt_nvfp4", "weight", NULL, "[0,32]", -1, NULL },
    { "modelopt_nvfp4", "weight", NULL, "[64,0]", -1, NULL },
    { "modelopt_nvfp4", "weight", NULL, "[64,33]", -1, NULL },
    { "modelopt_nvfp4", "weight", NULL, "[32,64]", -1, NULL },
    { "modelopt_nvfp4", "weight_scale", NULL, "[64,2]", -1, NULL },
    { "modelopt_nvfp4", "weight_scale", NULL, "[1,1]", -1, NULL },
    { "modelopt_nvfp4", "weight_scale", NULL, "[0]", -1, NULL },
    { "modelopt_nvfp4", "weight_scale", NULL, NULL, 0x7f, NULL },
    { "modelopt_nvfp4", "weight_scale", NULL, NULL, 0xff, NULL },
    { "modelopt_nvfp4", "weight_scale", NULL, NULL, -1, "nothing" },
    { "modelopt_nvfp4", "weight_scale_2", NULL, NULL, 0, NULL },
    { "modelopt_nvfp4", "weight_scale_2", NULL, NULL, 0xff, NULL },
    { "modelopt_nvfp4", "weight_scale_2", "\"F64\"", "[]", -1, NULL },
    { "modelopt_nvfp4", "weight_scale_2", "\"BF16\"", "[2]", -1, NULL },
    { "modelopt_nvfp4", "weight_scale_2", NULL, "[2]", -1, NULL },
    { "modelopt_nvfp4", "weight_scale_2", NULL, "[0]", -1, NULL },
    { "modelopt_nvfp4", "weight_scale_2", NULL, NULL, -1, "nothing" },
    { "ct_nvfp4", "weight_packed", NULL, "[64,16]", -1, NULL },
    { "ct_nvfp4", "weight_packed", "\"I32\"", "[64,8]", -1, NULL },
    { "ct_nvfp4", "weight_scale", "\"U8\"", NULL, -1, NULL },
    { "ct_nvfp4", "weight_scale", "\"BF16\"", NULL, -1, NULL },
    { "ct_nvfp4", "weight_scale", NULL, NULL, -1, "nothing" },
    { "ct_nvfp4", "weight_global_scale", NULL, NULL, 0, NULL },
    { "ct_nvfp4", "weight_global_scale", NULL, NULL, 0x7f, NULL },
    { "ct_nvfp4", "weight_global_scale", NULL, NULL, -1, "nothing" },
    { "ct_mxfp4", "weight_scale", NULL, NULL, 0xff, NULL },
    { "ct_mxfp4", "weight_scale", NULL, NULL, 0xfe, NULL },
    { "ct_mxfp4", "weight_scale", NULL, "[64,1]", -1, NULL },
    { "ct_mxfp4", "weight_scale", "\"F32\"", NULL, -1, NULL },
    { "ct_mxfp4", "weight_packed", NULL, "[64,8]", -1, NULL },
    { "fp8_block", "weight", NULL, NULL, 0x7f, NULL },
    { "fp8_block", "weight", NULL, NULL, 0xff, NULL },
    { "fp8_block", "weight", NULL, "[0,64]", -1, NULL },
    { "fp8_block", "weight", NULL, "[1]", -1, NULL },
    { "fp8_block", "weight_scale_inv", NULL, "[7,9]", -1, NULL },
    { "fp8_block", "weight_scale_inv", "\"I32\"", NULL, -1, NULL },
    { "fp8_block", "weight_scale_inv", NULL, NULL, 0xff, NULL },
    { "fp8_block", "weight_scale_inv", NULL, NULL, -1, "nothing" },
    { "ct_fp8_dynamic", "weight_scale", NULL, "[3,1]", -1, NULL },
    { "ct_fp8_dynamic", "weight_scale", NULL, NULL, 0xff, NULL },
    { "awq", "qweight", NULL, "[1,1]", -1, NULL },
    { "awq", "qweight", "\"I64\"", "[64,4]", -1, NULL },
    { "awq", "qzeros", NULL, "[1,1]", -1, NULL },
    { "awq", "qzeros", NULL, NULL, -1, "nothing" },
    { "awq", "scales", NULL, "[1,7]", -1, NULL },
    { "awq", "scales", NULL, "[0,64]", -1, NULL },
    { "awq", "scales", NULL, NULL, 0xff, NULL },
    { "awq", "scales", "\"I16\"", NULL, -1, NULL },
    { "gptq", "qweight", NULL, "[0,64]", -1, NULL },
    { "gptq", "qzeros", "\"F32\"", NULL, -1, NULL },
    { "gptq", "scales", NULL, NULL, 0x7f, NULL },
    { "gptq_act_order", "g_idx", NULL, NULL, 0x7f, NULL },
    { "gptq_act_order", "g_idx", NULL, NULL, 0xff, NULL },
    { "gptq_act_order", "g_idx", NULL, "[1]", -1, NULL },
    { "gptq_act_order", "g_idx", "\"I64\"", NULL, -1, NULL },
    { "gptq_act_order", "g_idx", "\"F32\"", NULL, -1, NULL },
    { "ct_int4", "weight_shape", NULL, NULL, 0xff, NULL },
    { "ct_int4", "weight_shape", NULL, NULL, 0x7f, NULL },
    { "ct_int4", "weight_shape", NULL, NULL, 0, NULL },
    { "ct_int4", "weight_shape", NULL, "[1]", -1, NULL },
    { "ct_int4", "weight_packed", NULL, "[1,1]", -1, NULL },
    { "ct_int4", "weight_scale", NULL, "[1,1]", -1, NULL },
    { "ct_int4", "weight_scale", NULL, NULL, 0xff, NULL },
    { "ct_int4_asym", "weight_zero_point", NULL, "[1,1]", -1, NULL },
    { "ct_int4_asym", "weight_zero_point", "\"F32\"", NULL, -1, NULL },
};

static int64_t count_of(const char *shape)
{
    int64_t n = 1;
    for (const char *c = shape + 1; *c && *c != ']';) {
        n *= strtol(c, (char **)&c, 10);
        if (*c == ',') c++;
    }
    return n;
}

static int bits_of(const char *dtype)
{
    char name[32] = "";
    sscanf(dtype, "\"%31[^\"]", name);
    return dtype_bits_of_name(name);
}

/* All data anew, every tensor as long as its type and shape want. */
static void lay_out(void)
{
    Buf data;
    buf_init(&data, 1 << 24);
    for (int i = 0; i < world.n; i++) {
        Row *r = &world.row[i];
        const uint64_t bytes = (uint64_t)count_of(r->shape) * (uint64_t)bits_of(r->dtype) / 8, first = data.len;
        for (uint64_t k = 0; k < bytes; k++) buf_append(&data, k < r->bytes ? world.data.data + r->first + k : "", 1);
        r->first = first;
        r->bytes = bytes;
        set_range(r, first, first + bytes);
    }
    buf_free(&world.data);
    world.data = data;
}

static void hostile_parts(void **state)
{
    unlink(file("model.safetensors.index.json"));
    for (int i = 0; i < COUNT(part_cases); i++) {
        const PartCase *c = &part_cases[i];
        char below[96], name[160];
        snprintf(below, sizeof below, "tests/data/published/%s", c->layout);
        begin(below);
        put_model();
        accept_model(world.dir.path, c->layout);
        snprintf(name, sizeof name, "model.layers.1.self_attn.q_proj.%s", c->part);
        Row *r = row(name);
        if (c->dtype) snprintf(r->dtype, sizeof r->dtype, "%s", c->dtype);
        if (c->shape) snprintf(r->shape, sizeof r->shape, "%s", c->shape);
        if (c->renamed) snprintf(r->name, sizeof r->name, "model.layers.1.self_attn.q_proj.%s", c->renamed);
        if (c->byte >= 0) memset(world.data.data + r->first, c->byte, r->bytes);
        lay_out();
        put_model();
        refuse(world.dir.path, "%s, %s: %s %s %d %s", c->layout, c->part, c->dtype ? c->dtype : "", c->shape ? c->shape : "", c->byte, c->renamed ? c->renamed : "");
    }
}

/* ---- the file system ---- */

static void strange_files(void **state)
{
    char path[512];
    begin_plain();
    snprintf(path, sizeof path, "%s", file("model.safetensors"));
    put_model();
    accept_model(world.dir.path, "the model as it is");
    unlink(path);
    refuse(world.dir.path, "no weights at all");
    assert_int_equal(mkdir(path, 0700), 0);
    refuse(world.dir.path, "a directory for a file");
    rmdir(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse(world.dir.path, "a FIFO that nobody writes");
    unlink(path);
    static const char *const targets[] = { "/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "/proc/self/maps", "/nobody/there", "model.safetensors", "/etc/passwd", "/" };
    for (int i = 0; i < COUNT(targets); i++) {
        assert_int_equal(symlink(targets[i], path), 0);
        refuse(world.dir.path, "a link to %s", targets[i]);
        unlink(path);
    }
    hostile_write(path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", 62);
    refuse(world.dir.path, "a git-lfs pointer");
    hostile_write(path, "<!DOCTYPE html><html>404</html>", 31);
    refuse(world.dir.path, "a web page");
    hostile_write(path, "PK\3\4 a zip file, as torch writes it", 35);
    refuse(world.dir.path, "a zip file");
    unlink(path);
}

static int open_world(void **state)
{
    temp_dir_open(&world.dir);
    return 0;
}

static int close_world(void **state)
{
    buf_free(&world.data);
    temp_dir_close(&world.dir);
    return 0;
}

static void two_hundred(void **state)
{
    printf("%d hostile checkpoints refused\n", refused_count());
    assert_true(refused_count() >= 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strange_files),   cmocka_unit_test(wrong_types),     cmocka_unit_test(wrong_shapes),    cmocka_unit_test(wrong_ranges),
        cmocka_unit_test(moved_ranges),    cmocka_unit_test(wrong_values),    cmocka_unit_test(wrong_names),     cmocka_unit_test(missing_and_spare),
        cmocka_unit_test(hostile_headers), cmocka_unit_test(endless_headers), cmocka_unit_test(lying_lengths),   cmocka_unit_test(cut_files),
        cmocka_unit_test(bad_numbers),     cmocka_unit_test(hostile_indexes), cmocka_unit_test(endless_indexes), cmocka_unit_test(hostile_parts),
        cmocka_unit_test(two_hundred),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
