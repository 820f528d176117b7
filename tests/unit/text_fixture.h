/* What the tests of src/text share: fixtures, nano's tokenizer, one-call encoding. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "support/temp_dir.h"
#include "text/tokenizer.h"

typedef struct Ids {
    int32_t *ids;
    int64_t  n, capacity;
} Ids;

static inline json_t *fixture_read(const char *below)
{
    Error err = { 0 };
    json_t *json;
    if (json_parse_file(&json, source_tree(below), 64 << 20, &err) != OK) fail_msg("%s", err.text);
    return json;
}

static inline Tokenizer *tokenizer_in(const char *dir, const char *cache_dir)
{
    Error err = { 0 };
    Tokenizer *t;
    if (tokenizer_open(&t, dir, cache_dir, &err) != OK) fail_msg("%s", err.text);
    return t;
}

/* A scratch of its own each time: state left behind by one text would show as a difference in the next. */
static inline Status encode(const Tokenizer *t, const char *text, size_t n, bool plain, int64_t max, Ids *out,
                            Error *err)
{
    TokenizerScratch *s;
    assert_int_equal(tokenizer_scratch_open(&s, t, err), OK);
    Status status = tokenizer_encode(t, s, text, n, plain, max, &out->ids, &out->n, &out->capacity, err);
    tokenizer_scratch_close(s);
    return status;
}

static inline void ids_free(Ids *ids)
{
    mem_free(ids->ids);
    *ids = (Ids){ 0 };
}

static inline bool ids_equal(const Ids *got, const json_t *want)
{
    if (got->n != (int64_t)json_array_size(want)) return false;
    for (int64_t i = 0; i < got->n; i++) {
        if (got->ids[i] != json_integer_value(json_array_get(want, (size_t)i))) return false;
    }
    return true;
}
