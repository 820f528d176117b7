/* Two hundred and more hostile GGUF files: keys, tensors, counts, places, parts, and what can stand in a file's place. */
#include "hostile/refuse.h"

#include "base/error.h"
#include "support/gguf_writer.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { U8, I8, U16, I16, U32, I32, F32, TRUTH, TEXT, ARRAY, U64, I64, F64 }; /* GGUF's numbers */

static TempDir dir;

static const char *model(void)
{
    return temp_path(&dir, "model.gguf");
}

/* ---- a small llama that can be spoilt ---- */

typedef struct KeyRow {
    const char *name;
    int         type;
    double      number;
    const char *text;
} KeyRow;

static const KeyRow keys[] = {
    { "general.architecture", TEXT, 0, "llama" },
    { "llama.block_count", U32, 2, NULL },
    { "llama.context_length", U32, 64, NULL },
    { "llama.embedding_length", U32, 32, NULL },
    { "llama.feed_forward_length", U32, 48, NULL },
    { "llama.attention.head_count", U32, 4, NULL },
    { "llama.attention.head_count_kv", U32, 2, NULL },
    { "llama.attention.key_length", U32, 8, NULL },
    { "llama.attention.layer_norm_rms_epsilon", F32, 1e-5, NULL },
    { "llama.rope.freq_base", F32, 1e4, NULL },
    { "llama.rope.dimension_count", U32, 8, NULL },
};

typedef struct TensorRow {
    const char *name;
    int         n_dims;
    uint64_t    ne[2];
} TensorRow;

static const TensorRow layer_tensors[] = {
    { "attn_norm.weight", 1, { 32, 1 } },   { "attn_q.weight", 2, { 32, 32 } },      { "attn_k.weight", 2, { 32, 16 } },  { "attn_v.weight", 2, { 32, 16 } },
    { "attn_output.weight", 2, { 32, 32 } }, { "ffn_norm.weight", 1, { 32, 1 } },    { "ffn_gate.weight", 2, { 32, 48 } }, { "ffn_up.weight", 2, { 32, 48 } },
    { "ffn_down.weight", 2, { 48, 32 } },
};

/* What is done to it. Zeros leave it as it is. */
typedef struct Change {
    const char *key;      /* replaced by raw bytes: type and value; no bytes: left out */
    const void *raw;
    size_t      n_raw;
    const char *tensor;   /* of which ... */
    const char *name;     /* ... the name */
    uint32_t    n_dims;   /* ... the number of dimensions, and all of them */
    uint64_t    ne[5];
    uint64_t    type;     /* ... type + 1 */
    int64_t     move;     /* ... the place, by so much */
    bool        is_twice, is_missing;
    uint64_t    n_tensors, n_keys; /* counts + 1 */
    uint32_t    number_bits;       /* of a tensor's first number */
    size_t      cut;               /* this much of the end is missing */
} Change;

static void put_keys(Buf *b, const Change *c, uint64_t *n)
{
    for (int i = 0; i < COUNT(keys); i++) {
        const KeyRow *k = &keys[i];
        const bool is_changed = c->key && strcmp(c->key, k->name) == 0;
        if (is_changed && !c->n_raw) continue;
        gguf_raw_text(b, k->name);
        ++*n;
        if (is_changed) {
            buf_append(b, c->raw, c->n_raw);
            continue;
        }
        gguf_raw_u32(b, (uint32_t)k->type);
        float f = (float)k->number;
        if (k->type == TEXT) gguf_raw_text(b, k->text);
        else if (k->type == F32) buf_append(b, &f, sizeof f);
        else gguf_raw_u32(b, (uint32_t)k->number);
    }
    if (c->key && strchr(c->key, '+')) { /* one that is new */
        gguf_raw_text(b, c->key + 1);
        buf_append(b, c->raw, c->n_raw);
        ++*n;
    }
}

typedef struct Infos {
    Buf      infos, data;
    uint64_t n;
} Infos;

static void put_tensor(Infos *o, const Change *c, const char *name, int n_dims, const uint64_t *ne)
{
    const bool is_changed = c->tensor && strcmp(c->tensor, name) == 0;
    const uint64_t numbers = ne[0] * (n_dims > 1 ? ne[1] : 1);
    if (is_changed && c->is_missing) return;
    for (int k = 0; k < (is_changed && c->is_twice ? 2 : 1); k++) {
        const uint32_t own_dims = is_changed && c->n_dims ? c->n_dims - 1 : (uint32_t)n_dims;
        gguf_raw_text(&o->infos, is_changed && c->name ? c->name : name);
        gguf_raw_u32(&o->infos, own_dims);
        for (uint32_t i = 0; i < own_dims && i < 5; i++) gguf_raw_u64(&o->infos, is_changed && c->n_dims ? c->ne[i] : ne[i]);
        gguf_raw_u32(&o->infos, is_changed && c->type ? (uint32_t)(c->type - 1) : 0);
        gguf_raw_u64(&o->infos, o->data.len + (uint64_t)(is_changed ? c->move : 0));
        for (uint64_t i = 0; i < numbers; i++) gguf_raw_u32(&o->data, is_changed && i == 0 && c->number_bits ? c->number_bits : 0x3c000000 + (uint32_t)i);
        while (o->data.len % 32) buf_append(&o->data, "", 1);
        o->n++;
    }
}

static void put_tensors(Infos *o, const Change *c)
{
    put_tensor(o, c, "token_embd.weight", 2, (uint64_t[]){ 32, 16 });
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < COUNT(layer_tensors); i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s", l, layer_tensors[i].name);
            put_tensor(o, c, name, layer_tensors[i].n_dims, layer_tensors[i].ne);
        }
    put_tensor(o, c, "output_norm.weight", 1, (uint64_t[]){ 32, 1 });
}

static void build(Buf *out, const Change *c)
{
    Infos o = { 0 };
    Buf k;
    uint64_t n_keys = 0;
    buf_init(&k, 1 << 24);
    buf_init(&o.infos, 1 << 24);
    buf_init(&o.data, 1 << 24);
    put_keys(&k, c, &n_keys);
    put_tensors(&o, c);
    buf_init(out, 1 << 26);
    buf_text(out, "GGUF");
    gguf_raw_u32(out, 3);
    gguf_raw_u64(out, c->n_tensors ? c->n_tensors - 1 : o.n);
    gguf_raw_u64(out, c->n_keys ? c->n_keys - 1 : n_keys);
    buf_append(out, k.data, k.len);
    buf_append(out, o.infos.data, o.infos.len);
    while (out->len % 32) buf_append(out, "", 1);
    buf_append(out, o.data.data, o.data.len);
    buf_free(&k);
    buf_free(&o.infos);
    buf_free(&o.data);
}

static void put_model(const Change *c)
{
    Buf b;
    build(&b, c);
    hostile_write(model(), b.data, b.len - c->cut);
    buf_free(&b);
}

/* ---- keys ---- */

/* A value of a key: its type and bytes. */
static size_t raw_value(uint8_t out[64], int type, const void *value, size_t n)
{
    uint32_t t = (uint32_t)type;
    memcpy(out, &t, 4);
    memcpy(out + 4, value, n);
    return 4 + n;
}

static void refuse_key(const char *key, int type, const void *value, size_t n, const char *what)
{
    uint8_t raw[64];
    Change c = { .key = key, .raw = raw, .n_raw = raw_value(raw, type, value, n) };
    put_model(&c);
    refuse(model(), "%s is %s", key, what);
}

/* What no count can be. */
static void bad_counts(void **state)
{
    static const uint8_t text[12] = { 4, 0, 0, 0, 0, 0, 0, 0, '3', '2', '3', '2' };
    static const uint8_t array[16] = { 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0 };
    for (int i = 1; i < COUNT(keys); i++) {
        if (keys[i].type != U32) continue;
        refuse_key(keys[i].name, TEXT, text, 12, "a text");
        refuse_key(keys[i].name, F32, &(float){ 8.5f }, 4, "8.5");
        refuse_key(keys[i].name, I32, &(int32_t){ -8 }, 4, "-8");
        refuse_key(keys[i].name, U64, &(uint64_t){ UINT64_MAX }, 8, "2^64 - 1");
        refuse_key(keys[i].name, I64, &(int64_t){ INT64_MIN }, 8, "-2^63");
        if (!strstr(keys[i].name, "context")) refuse_key(keys[i].name, U32, &(uint32_t){ 0x7fffffff }, 4, "2^31 - 1");
        if (!strstr(keys[i].name, "head_count_kv")) refuse_key(keys[i].name, ARRAY, array, 16, "an array");
    }
}

static void bad_reals(void **state)
{
    static const char *const names[] = { "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base" };
    static const float values[] = { __builtin_nanf(""), __builtin_inff(), -1, -__builtin_inff() };
    for (int v = 0; v < COUNT(names); v++) {
        for (int i = 0; i < COUNT(values); i++) refuse_key(names[v], F32, &values[i], 4, "no number for it");
        refuse_key(names[v], TRUTH, "\1", 1, "a truth");
        refuse_key(names[v], F64, &(double){ -1e300 }, 8, "-1e300");
    }
}

static void bad_architectures(void **state)
{
    static const char *const names[] = { "", "gemma", "LLAMA", "llama ", "qwen3moe", "qwen35", "\xff\xfe", "a very long name of an architecture that nobody has" };
    for (int i = 0; i < COUNT(names); i++) {
        uint8_t value[80] = { 0 };
        uint64_t n = strlen(names[i]);
        memcpy(value, &n, 8);
        memcpy(value + 8, names[i], n);
        uint8_t raw[96];
        Change c = { .key = "general.architecture", .raw = raw, .n_raw = 4 + 8 + (size_t)n };
        raw[0] = TEXT;
        raw[1] = raw[2] = raw[3] = 0;
        memcpy(raw + 4, value, 8 + (size_t)n);
        put_model(&c);
        refuse(model(), "architecture \"%s\"", names[i]);
    }
    refuse_key("general.architecture", U32, &(uint32_t){ 1 }, 4, "a number");
}

static void missing_keys(void **state)
{
    static const char *const names[] = { "general.architecture", "llama.block_count", "llama.context_length", "llama.embedding_length", "llama.feed_forward_length",
                                         "llama.attention.head_count" };
    for (int i = 0; i < COUNT(names); i++) {
        Change c = { .key = names[i] };
        put_model(&c);
        refuse(model(), "%s is missing", names[i]);
    }
}

/* Keys that a file may have, with values that it may not. */
static void bad_spare_keys(void **state)
{
    refuse_key("+general.alignment", U32, &(uint32_t){ 0 }, 4, "0");
    refuse_key("+general.alignment", U32, &(uint32_t){ 33 }, 4, "33");
    refuse_key("+general.alignment", U32, &(uint32_t){ UINT32_MAX }, 4, "2^32 - 1");
    refuse_key("+general.alignment", F32, &(float){ 32 }, 4, "a real");
    refuse_key("+split.count", U32, &(uint32_t){ 3 }, 4, "3, without the others");
    refuse_key("+split.count", U32, &(uint32_t){ UINT32_MAX }, 4, "2^32 - 1");
    refuse_key("+split.count", F32, &(float){ 2 }, 4, "a real");
    refuse_key("+llama.nextn_predict_layers", U32, &(uint32_t){ 2 }, 4, "as many as there are layers");
    refuse_key("+llama.block_count", U32, &(uint32_t){ 2 }, 4, "there twice");
    refuse_key("+", U32, &(uint32_t){ 2 }, 4, "a key without a name");
    refuse_key("+a\nb", U32, &(uint32_t){ 2 }, 4, "a key of two lines");
    refuse_key("+a\xff", U32, &(uint32_t){ 2 }, 4, "a key that is no text");
    refuse_key("+x", 13, &(uint32_t){ 2 }, 4, "of type 13");
    refuse_key("+x", -1, &(uint32_t){ 2 }, 4, "of type 2^32 - 1");
    refuse_key("+x", TRUTH, "\2", 1, "a truth of 2");
}

/* Arrays and texts of lengths that no file has. */
static void endless_values(void **state)
{
    static const uint64_t lengths[] = { (uint64_t)1 << 20, (uint64_t)1 << 31, (uint64_t)1 << 32, (uint64_t)1 << 61, ((uint64_t)1 << 62) + 1, (uint64_t)1 << 63, UINT64_MAX };
    static const uint32_t types[] = { U8, U32, TEXT, U64, F64 };
    for (int i = 0; i < COUNT(lengths); i++) {
        refuse_key("+x", TEXT, &lengths[i], 8, "a text without end");
        for (int t = 0; t < COUNT(types); t++) {
            uint8_t array[12];
            memcpy(array, &types[t], 4);
            memcpy(array + 4, &lengths[i], 8);
            refuse_key("+x", ARRAY, array, 12, "an array without end");
        }
    }
    uint8_t nested[12] = { ARRAY, 0, 0, 0, 1 };
    refuse_key("+x", ARRAY, nested, 12, "an array of arrays");
    nested[0] = 13;
    refuse_key("+x", ARRAY, nested, 12, "an array of nothing known");
}

/* ---- tensors ---- */

static const char *const victims[] = { "token_embd.weight", "blk.1.attn_q.weight", "blk.0.ffn_norm.weight" };

static void refuse_tensor(Change c, const char *what)
{
    for (int v = 0; v < COUNT(victims); v++) {
        c.tensor = victims[v];
        put_model(&c);
        refuse(model(), "%s: %s", victims[v], what);
    }
}

static void bad_shapes(void **state)
{
    refuse_tensor((Change){ .n_dims = 1 }, "no dimension");
    refuse_tensor((Change){ .n_dims = 6, .ne = { 2, 2, 2, 2, 2 } }, "five dimensions");
    refuse_tensor((Change){ .n_dims = UINT32_MAX }, "very many dimensions");
    refuse_tensor((Change){ .n_dims = 2, .ne = { 0 } }, "nothing");
    refuse_tensor((Change){ .n_dims = 2, .ne = { UINT64_MAX } }, "2^64 - 1");
    refuse_tensor((Change){ .n_dims = 2, .ne = { (uint64_t)1 << 63 } }, "2^63");
    refuse_tensor((Change){ .n_dims = 3, .ne = { (uint64_t)1 << 32, (uint64_t)1 << 32 } }, "2^32 x 2^32");
    refuse_tensor((Change){ .n_dims = 3, .ne = { (uint64_t)1 << 40, 1 } }, "2^40 x 1");
    refuse_tensor((Change){ .n_dims = 5, .ne = { 65536, 65536, 65536, 65536 } }, "2^64 in four");
    refuse_tensor((Change){ .n_dims = 3, .ne = { 31, 31 } }, "another shape");
    refuse_tensor((Change){ .n_dims = 2, .ne = { 8 } }, "a vector of 8");
}

static void bad_types(void **state)
{
    static const uint64_t types[] = { 4, 5, 9, 10, 16, 24, 26, 28, 31, 36, 43, 99, 0x7fffffff, UINT32_MAX };
    for (int i = 0; i < COUNT(types); i++) {
        char what[32];
        snprintf(what, sizeof what, "type %llu", (unsigned long long)types[i]);
        refuse_tensor((Change){ .type = types[i] + 1 }, what);
    }
    refuse_tensor((Change){ .type = 12 + 1 }, "Q4_K, whose blocks do not fit");
}

static void bad_places(void **state)
{
    refuse_tensor((Change){ .move = 1 }, "a byte too late");
    refuse_tensor((Change){ .move = 16 }, "not aligned");
    refuse_tensor((Change){ .move = 32 }, "over the next one");
    refuse_tensor((Change){ .move = (int64_t)1 << 40 }, "a terabyte away");
    refuse_tensor((Change){ .move = INT64_MAX - 31 }, "2^63 away");
    refuse_tensor((Change){ .is_twice = true }, "twice");
    refuse_tensor((Change){ .is_missing = true }, "missing");
}

static void bad_names(void **state)
{
    static const char *const names[] = { "", "a\nb", "\xff", "blk.2.attn_q.weight", "blk.-1.attn_q.weight", "blk.99999999999999999999.attn_q.weight", "blk.1.attn_q",
                                         "BLK.1.attn_q.weight", "0123456789012345678901234567890123456789012345678901234567890123", "%s%n", "blk.0.attn_v.weight" };
    for (int i = 0; i < COUNT(names); i++) {
        Change c = { .tensor = "blk.1.attn_q.weight", .name = names[i] };
        put_model(&c);
        refuse(model(), "named \"%s\"", names[i]);
    }
}

static void bad_numbers(void **state)
{
    static const uint32_t bits[] = { 0x7fc00000, 0xffc00000, 0x7f800000, 0xff800000, 0x7f800001 };
    for (int i = 0; i < COUNT(bits); i++) {
        Change c = { .tensor = "blk.0.ffn_norm.weight", .number_bits = bits[i] };
        put_model(&c);
        refuse(model(), "a norm of %08x", bits[i]);
    }
}

/* ---- counts and lengths ---- */

static void bad_counts_of_all(void **state)
{
    static const uint64_t counts[] = { 0, 1, 100, 65537, (uint64_t)1 << 31, (uint64_t)1 << 32, (uint64_t)1 << 62, UINT64_MAX - 1 };
    for (int i = 0; i < COUNT(counts); i++) {
        put_model(&(Change){ .n_tensors = counts[i] + 1 });
        refuse(model(), "%llu tensors", (unsigned long long)counts[i]);
        put_model(&(Change){ .n_keys = counts[i] + 1 });
        refuse(model(), "%llu keys", (unsigned long long)counts[i]);
    }
}

static void cut_files(void **state)
{
    Buf b;
    build(&b, &(Change){ 0 });
    for (int i = 0; i < 40; i++) {
        hostile_write(model(), b.data, b.len * (size_t)i / 40);
        refuse(model(), "cut to %d of 40 parts", i);
    }
    for (size_t n = 0; n < 24; n += 3) {
        hostile_write(model(), b.data, n);
        refuse(model(), "cut to %zu bytes", n);
    }
    for (int i = 0; i < 10; i++) {
        hostile_write(model(), b.data, b.len);
        refuse_cut_later(model(), model(), (long)(b.len * (size_t)i / 10), "cut to %d of 10 parts while it is loaded", i);
    }
    buf_free(&b);
}

static void holes(void **state)
{
    static const uint64_t lengths[] = { 20 << 20, 40 << 20, (uint64_t)1 << 39 };
    for (int i = 0; i < COUNT(lengths); i++) { /* a text that goes on and on in a file of a terabyte */
        Buf b;
        buf_init(&b, 4096);
        buf_text(&b, "GGUF");
        gguf_raw_u32(&b, 3);
        gguf_raw_u64(&b, 0);
        gguf_raw_u64(&b, 1);
        gguf_raw_text(&b, "k");
        gguf_raw_u32(&b, TEXT);
        gguf_raw_u64(&b, lengths[i]);
        hostile_write(model(), b.data, b.len);
        assert_int_equal(truncate(model(), (off_t)1 << 40), 0);
        refuse(model(), "a text of %llu bytes in a terabyte", (unsigned long long)lengths[i]);
        buf_free(&b);
    }
    hostile_write(model(), "GGUF\3\0\0\0", 8);
    assert_int_equal(truncate(model(), (off_t)1 << 40), 0);
    refuse(model(), "a terabyte of zeros");
}

static void other_starts(void **state)
{
    static const char *const starts[] = { "GGML\3\0\0\0", "gguf\3\0\0\0", "FUGG\0\0\0\3", "GGUF\1\0\0\0", "GGUF\4\0\0\0", "GGUF\0\0\0\3", "GGUF\xff\xff\xff\xff", "GGUF\0\0\0\0",
                                          "PK\3\4    ", "<!DOCTYP", "\0\0\0\0\0\0\0\0" };
    for (int i = 0; i < COUNT(starts); i++) {
        Buf b;
        build(&b, &(Change){ 0 });
        memcpy(b.data, starts[i], 8);
        hostile_write(model(), b.data, b.len);
        refuse(model(), "start %d", i);
        buf_free(&b);
    }
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
    hostile_write(model(), pointer, sizeof pointer - 1);
    refuse(model(), "a git-lfs pointer");
}

/* ---- parts ---- */

/* The model as part `no` of `count` under a name that says `named_no` of `named_count`. */
static const char *put_part(int no, int count, int named_no, int named_count, int n_tensors)
{
    char name[64];
    Buf b;
    uint8_t raw[64];
    Change c = { .key = "+split.count", .raw = raw, .n_raw = raw_value(raw, U32, &count, 4) };
    if (n_tensors >= 0) c.n_tensors = (uint64_t)n_tensors + 1;
    build(&b, &c);
    snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", named_no, named_count);
    const char *path = temp_path(&dir, name);
    hostile_write(path, b.data, b.len);
    buf_free(&b);
    return path;
}

static void bad_parts(void **state)
{
    const char *first = put_part(0, 2, 1, 2, -1);
    refuse(first, "the second part is missing, and no part says its number");
    put_part(0, 2, 2, 2, -1);
    refuse(temp_path(&dir, "m-00002-of-00002.gguf"), "a part that says no number");
    put_part(0, 3, 1, 2, -1);
    refuse(first, "two in the name, three inside");
    put_part(0, 1000, 1, 1000, -1);
    refuse(temp_path(&dir, "m-00001-of-01000.gguf"), "a thousand parts of which one is there");
    refuse(temp_path(&dir, "m-00007-of-00009.gguf"), "a part of nothing");
    put_part(0, 2, 0, 2, -1);
    refuse(temp_path(&dir, "m-00000-of-00002.gguf"), "part 0, whose first part is another file");
}

/* ---- the file system ---- */

static void strange_files(void **state)
{
    char path[512];
    snprintf(path, sizeof path, "%s", model());
    put_model(&(Change){ 0 });
    accept_model(path, "the model as it is");
    unlink(path);
    refuse(path, "no file");
    assert_int_equal(mkdir(path, 0700), 0);
    refuse(path, "a directory");
    rmdir(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse(path, "a FIFO");
    unlink(path);
    static const char *const targets[] = { "/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "/nobody/there", "model.gguf", "/etc/passwd", "/" };
    for (int i = 0; i < COUNT(targets); i++) {
        assert_int_equal(symlink(targets[i], path), 0);
        refuse(path, "a link to %s", targets[i]);
        unlink(path);
    }
}

static int open_dir(void **state)
{
    temp_dir_open(&dir);
    return 0;
}

static int close_dir(void **state)
{
    temp_dir_close(&dir);
    return 0;
}

static void two_hundred(void **state)
{
    printf("%d hostile files refused\n", refused_count());
    assert_true(refused_count() >= 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strange_files),    cmocka_unit_test(bad_counts), cmocka_unit_test(bad_reals),  cmocka_unit_test(bad_architectures), cmocka_unit_test(missing_keys),
        cmocka_unit_test(bad_spare_keys),   cmocka_unit_test(endless_values), cmocka_unit_test(bad_shapes), cmocka_unit_test(bad_types),     cmocka_unit_test(bad_places),
        cmocka_unit_test(bad_names),        cmocka_unit_test(bad_numbers), cmocka_unit_test(bad_counts_of_all), cmocka_unit_test(cut_files),   cmocka_unit_test(holes),
        cmocka_unit_test(other_starts),     cmocka_unit_test(bad_parts),  cmocka_unit_test(two_hundred),
    };
    return cmocka_run_group_tests(tests, open_dir, close_dir);
}
