/* A hostile file must be refused: by the plan or while it is loaded, with one sentence, within 2 s of processor time and 64 MB. */
#pragma once

#include "base/buf.h"
#include "support/temp_dir.h"

/* The model in `path` (a directory or a .gguf file) is planned and opened in a process of its own; stops the test when that is
 * not refused, crashes, or takes more than it may. The rest names the case. */
void refuse(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with a file that is cut to n bytes once its header was read. */
void refuse_cut_later(const char *path, const char *file, long n, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* And one that must open, so that the tests are about what they say. */
void accept_model(const char *path, const char *what);

int  refused_count(void);
void refused_reset(void);

/* Files of a case: `path` is written anew. */
void hostile_write(const char *path, const void *data, size_t n);
