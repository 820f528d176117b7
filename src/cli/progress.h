/* A line on stderr while a model loads: a bar with GiB, GiB/s and the time left. Quiet when stderr is no terminal that
 * moves its cursor, and for the first half second: what loads faster needs no bar.
 *
 *     progress_begin ──> (a thread draws, ten times a second) ──> progress_end: the line is gone again */
#pragma once

#include "engine/stack.h"

typedef struct Progress Progress;

/* from is borrowed until progress_end(). NULL when there is nothing to draw on: progress_end copes. */
Progress *progress_begin(const StackProgress *from);
void      progress_end(Progress *p);

/* The line itself, at most columns - 1 characters of it: what stage, how far, seconds since the first byte. */
void progress_format(char *out, size_t size, const char *stage, uint64_t done_bytes, uint64_t total_bytes,
                     double seconds, int columns);
