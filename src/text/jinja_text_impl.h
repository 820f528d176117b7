/* Work on strings that methods and filters share. Positions are characters to the template, bytes in here. */
#pragma once

#include "text/jinja_eval_impl.h"

typedef enum TextCase { CASE_LOWER, CASE_UPPER, CASE_CAPITALIZE, CASE_TITLE } TextCase;
typedef enum TextKind { TEXT_DIGITS, TEXT_LETTERS, TEXT_SPACE, TEXT_UPPER, TEXT_LOWER } TextKind;

/* chars: V_MISSING or None for white space, else the characters to be stripped. */
Value text_strip(Interp *in, Str s, Value chars, bool left, bool right);
Value text_case(Interp *in, Str s, TextCase how);
bool  text_is(Interp *in, Str s, TextKind kind); /* all characters, and there are some */
Value text_replace(Interp *in, Str s, Str old, Str new, int64_t max); /* max < 0: all */
Value text_split(Interp *in, Str s, Str separator, int64_t max, bool from_right);
Value text_split_space(Interp *in, Str s, int64_t max, bool from_right);
Value text_split_lines(Interp *in, Str s, bool keep_ends);
const char *text_find(Interp *in, Str s, Str part, bool last); /* NULL = not there */

Value dict_pairs(Interp *in, const Dict *d, ValueType type); /* (key, value) tuples; jinja_methods.c */
