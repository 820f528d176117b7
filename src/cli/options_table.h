/* The table of flags and the table of commands: what parsing, --help, the man page and shell completion walk. */
#pragma once

#include "cli/options.h"

#include <stddef.h>

typedef enum OptionKind { FLAG, INT, REAL, TEXT, TEXTS, IGNORED } OptionKind;

typedef struct OptionRow {
    const char *names;  /* "max-model-len context-length": the first is ours */
    const char *letter; /* short form without the dash, or NULL */
    OptionKind  kind;
    unsigned    commands;
    size_t      offset; /* of the value in Options */
    double      min, max; /* INT, REAL */
    const char *value;    /* how --help calls the value */
    const char *help;
} OptionRow;
extern const OptionRow option_rows[];
extern const int n_option_rows;

typedef struct CommandRow {
    const char *name;
    Command     command;
    const char *usage, *about;
    bool        needs_model;
} CommandRow;
extern const CommandRow command_rows[];
extern const int n_command_rows;

/* Length of the first of a row's names. */
static inline int option_name_length(const OptionRow *row)
{
    int n = 0;
    while (row->names[n] && row->names[n] != ' ') n++;
    return n;
}
