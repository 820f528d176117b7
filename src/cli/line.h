/* Reading what a person types: an edited line with history on a terminal (libedit), plain lines from everything else.
 *
 * On a terminal: the keys of ~/.editrc or emacs; Up and Down walk the history, which is kept in a file; a pasted text
 * is one input, line breaks included (bracketed paste); Alt-Enter breaks the line without sending it. Text is UTF-8
 * whatever the locale says. One thread, one LineReader at a time (the terminal and its signals are the process's). */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

typedef struct LineReader LineReader;

typedef enum LineEvent {
    LINE_TEXT,      /* a line is in *out */
    LINE_INTERRUPT, /* Ctrl-C; *out holds what was typed before it */
    LINE_END,       /* Ctrl-D, end of the input */
} LineEvent;

/* history: file to read and append to, NULL = none; one that cannot be read or written only means no history. */
Status line_open(LineReader **out, const char *history, Error *err);
void   line_close(LineReader *l); /* copes with NULL */

/* Shows the prompt (on a terminal), puts one input without its last line break into *out (NUL-terminated, owned by the
 * caller, cleared first). Invalid UTF-8 that was typed becomes U+FFFD. While it waits, Ctrl-C is its own. */
LineEvent line_read(LineReader *l, const char *prompt, Buf *out);
