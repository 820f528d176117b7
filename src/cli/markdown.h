/* Markdown on a terminal, while it is being written: nothing is taken away from the text and nothing is moved; only
 * colours go between its bytes. What is copied from the screen is what the model wrote; a misread mark costs little.
 *
 *     # Title        bold                       **bold**  *italic*      so; the stars dimmed
 *     - item  1. x   the mark coloured          `code`                  coloured, the backticks dimmed
 *     > quote        the mark dimmed            ``` block ```           coloured as it is, the fences dimmed
 *
 * A state machine over bytes: however the text is cut into pieces, the same bytes come out. Held back is only what the
 * next byte decides: a run of marks, the number of a list item, half of a two-byte character. Emphasis and code spans
 * end with their line at the latest, so a lonely star cannot colour the rest.
 *
 * Control characters but tab and newline are shown (^[ ...; a carriage return is left out), with and without colours: a
 * model's text may not steer the terminal. One thread. */
#pragma once

#include "base/buf.h"

enum { MARKDOWN_MAX_HELD = 16 };

typedef struct MarkdownStyle {
    bool is_bold, is_italic, is_code, is_heading, is_mark; /* mark: a character that is syntax, not text */
} MarkdownStyle;

typedef struct Markdown {
    bool          has_colors;
    MarkdownStyle style, shown;   /* of the next byte; of the last one written */
    int           place;          /* where in a line we are, see markdown.c */
    unsigned char held[MARKDOWN_MAX_HELD];
    int           n_held;
    unsigned char before;         /* the byte before the held ones; newline at the beginning */
    bool          is_escaped;     /* a backslash came: the next byte is text */
    bool          has_c2;         /* first byte of U+0080 .. U+00BF came */
    int           code_run;       /* backticks that close the code span; 0 = none is open */
    unsigned char fence;          /* '`' or '~' inside a code block, else 0 */
    int           fence_run;
} Markdown;

void markdown_init(Markdown *m, bool has_colors);
/* Appends to out what can be shown of all text so far. */
void markdown_push(Markdown *m, const char *text, size_t n, Buf *out);
/* No more text: what is held back comes out, colours are reset. */
void markdown_end(Markdown *m, Buf *out);
