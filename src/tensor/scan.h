/* A scanner for JSON of which the shape is known: looks at each byte once, keeps nothing, decodes strings where they stand.
 * For headers and lists that strangers wrote: a tree of them would be many times their size. */
#pragma once

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { SCAN_MAX_DEPTH = 64 };

typedef struct Scan {
    char       *text; /* overwritten */
    size_t      n, at;
    const char *what; /* for sentences: "its header" */
    Error      *err;
} Scan;

/* "byte 12 of its header: ..." */
Status scan_bad(const Scan *s, const char *what);
void   scan_space(Scan *s);
/* This character, behind any space. */
bool   scan_take(Scan *s, char c);
/* A string, decoded in place and NUL-terminated over its closing quote. */
Status scan_string(Scan *s, char **out);
/* A count: decimal digits, no sign, fraction, exponent or leading zero, at most 2^63 - 1. */
Status scan_count(Scan *s, int64_t *out);
/* Over any value: words, strings and brackets are looked at, not whether commas and colons stand where they should. */
Status scan_skip(Scan *s);
