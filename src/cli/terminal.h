/* What may be done with a terminal. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* fd is a terminal that moves its cursor. */
static inline bool terminal_moves(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

/* ... and its user wants colours (no-color.org). */
static inline bool terminal_has_colors(int fd)
{
    const char *no_color = getenv("NO_COLOR");
    return terminal_moves(fd) && !(no_color && *no_color);
}
