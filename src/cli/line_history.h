/* The file behind the history of a LineReader: an entry a line, UTF-8, oldest first; a line break within an entry is
 * written \n, a backslash \\. An entry is appended when it is made, so two chats at a time lose nothing of each other's
 * and a killed one nothing at all. Failures mean less history, never a failed chat. */
#pragma once

#include <stddef.h>

enum { HISTORY_MAX_ENTRIES = 1000 };

/* $XDG_STATE_HOME/tandem/chat_history or ~/.local/state/tandem/chat_history; "" when there is no such place. */
void history_default_path(char *out, size_t size);

/* Calls entry() for the last HISTORY_MAX_ENTRIES of them, oldest first; text is borrowed. A file of several times as
 * many is cut to these. */
void history_load(const char *path, void (*entry)(void *ctx, const char *text), void *ctx);

/* Makes the file and its folder (for the user alone) if there is none. */
void history_append(const char *path, const char *text);
