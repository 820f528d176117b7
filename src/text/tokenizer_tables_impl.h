/* The two large tables of tokenizer.json, read where they stand: a tree of 150,000 tokens and merges costs a third of
 * a second. Everything else goes through base/json. */
#pragma once

#include "base/arena.h"
#include "text/tokenizer_impl.h"

/* Cuts the values of model.vocab and model.merges out of json[n]: they are borrowed from it, and empty when it holds
 * none; *rest gets the text with {} and [] in their places. False: no memory. What is not JSON is not noticed here. */
bool json_cut(Buf *rest, Str *vocab, Str *merges, const char *json, size_t n);

/* Reads a value from left to right. After something else than what was asked for, `failed` is set and all calls give
 * false, empty text or -1. */
typedef struct JsonCursor {
    const char *at, *end;
    bool        failed;
} JsonCursor;

bool cursor_enter(JsonCursor *c, char bracket);  /* behind [ or { */
bool cursor_next(JsonCursor *c, char bracket, bool *is_first); /* true: at an item; false: behind ] or } */
char cursor_peek(JsonCursor *c);                 /* first character of the value, '\0' at the end */
void cursor_expect(JsonCursor *c, char sign);
bool cursor_done(JsonCursor *c);                 /* nothing but blanks is left, and nothing failed */
/* Borrowed from the text, or from scratch (overwritten) when it has escapes. */
Str     cursor_string(JsonCursor *c, Buf *scratch);
int64_t cursor_natural(JsonCursor *c); /* digits; -1 without failing for every other number */

/* ---- the tables ---- */

typedef struct Entry { /* of the vocabulary, in byte-mapped characters */
    Str     text;
    int32_t id;
} Entry;

typedef struct Tables {
    Entry   *entries;
    int32_t  n_entries, capacity;
    int32_t *slots; /* [n_slots] of entries, by hash of their text, -1 = empty */
    uint32_t n_slots;
    Merge   *merges; /* in order of rank */
    int32_t  n_merges, merge_capacity;
    Arena    arena; /* texts that had escapes */
} Tables;

/* Borrows from vocab and merges. ERR_INPUT with "WHAT is malformed: ...", also for what is not JSON. */
Status tables_read(Tables *t, Str vocab, Str merges, const char *what, Error *err);
void   tables_free(Tables *t);
