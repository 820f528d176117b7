/* What is written about commands and flags, all of it from the rows of options_table.c. */
#pragma once

#include <stdio.h>

void help_commands(FILE *out);                 /* tandem --help */
void help_flags(FILE *out, int command_row);   /* tandem COMMAND --help */
void help_man(FILE *out);                      /* tandem man: a page for man(1), as troff */
void help_completion(FILE *out);               /* tandem completion: for bash, and zsh's bashcompinit */
