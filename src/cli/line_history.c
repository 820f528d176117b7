/* See line_history.h. */
#include "cli/line_history.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_FILE_BYTES = 64 << 20, CUT_AT_ENTRIES = 4 * HISTORY_MAX_ENTRIES };

void history_default_path(char *out, size_t size)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = 0;
    if (xdg && xdg[0] == '/') n = snprintf(out, size, "%s/tandem/chat_history", xdg);
    else if (home && home[0] == '/') n = snprintf(out, size, "%s/.local/state/tandem/chat_history", home);
    if (n <= 0 || (size_t)n >= size) out[0] = 0;
}

/* In place: what is written never grows when it is read. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p == '\\' && p[1]) *to++ = *++p == 'n' ? '\n' : *p;
        else *to++ = *p;
    }
    *to = 0;
}

static char *skip_lines(char *text, int n)
{
    for (; n > 0; n--) text = strchr(text, '\n') + 1;
    return text;
}

void history_load(const char *path, void (*entry)(void *ctx, const char *text), void *ctx)
{
    char *text;
    size_t n;
    int n_lines = 0;
    if (file_read(path, MAX_FILE_BYTES, &text, &n, NULL)) return;
    for (char *p = text; (p = strchr(p, '\n')); p++) n_lines++;
    char *line = skip_lines(text, n_lines > HISTORY_MAX_ENTRIES ? n_lines - HISTORY_MAX_ENTRIES : 0);
    if (n_lines > CUT_AT_ENTRIES) file_write_atomic(path, line, (size_t)(text + n - line), NULL);
    for (char *end; (end = strchr(line, '\n')); line = end + 1) { /* an unfinished last line is left out */
        *end = 0;
        unescape(line);
        entry(ctx, line);
    }
    mem_free(text);
}

static void make_folder_of(const char *path)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash || slash == dir) return;
    *slash = 0;
    dir_make(dir, NULL);
}

void history_append(const char *path, const char *text)
{
    Buf line;
    buf_init(&line, MAX_FILE_BYTES);
    for (; *text; text++) {
        if (*text == '\n') buf_text(&line, "\\n");
        else if (*text == '\\') buf_text(&line, "\\\\");
        else buf_append(&line, text, 1);
    }
    buf_text(&line, "\n");
    make_folder_of(path);
    int fd = line.failed ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ssize_t written = fd < 0 ? -1 : write(fd, line.data, line.len); /* one call: lines of two chats do not mix */
    (void)written;
    if (fd >= 0) close(fd);
    buf_free(&line);
}
