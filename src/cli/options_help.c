/* See options_help.h. */
#include "cli/options_help.h"

#include "cli/options_table.h"

#include <string.h>

/* ---- --help ---- */

void help_commands(FILE *out)
{
    fprintf(out, "tandem %s: serves Qwen-class models with drafts that never change an answer.\n\n", TANDEM_VERSION);
    for (int i = 0; i < n_command_rows; i++) fprintf(out, "    tandem %-34s %s\n", command_rows[i].usage, command_rows[i].about);
    fprintf(out,
            "\nMODEL is nano or nano-plain (bundled), a directory, or a Hugging Face id in the local cache.\n"
            "tandem COMMAND --help lists its flags. Every flag can be set as TANDEM_<FLAG> in the environment or in .env; the\n"
            "command line beats the environment, that beats .env; EXTRA_ARGS is appended to the command line.\n"
            "Exit codes: 0 done, 1 failed, 2 usage, 3 the plan does not fit, 4 a rank or device was lost.\n");
}

void help_flags(FILE *out, int command)
{
    fprintf(out, "tandem %s [flags]: %s\n\n", command_rows[command].usage, command_rows[command].about);
    for (int i = 0; i < n_option_rows; i++) {
        const OptionRow *row = &option_rows[i];
        if (!(row->commands & command_rows[command].command) || row->kind == IGNORED) continue;
        char left[96];
        int n = option_name_length(row);
        snprintf(left, sizeof left, "%s%s%s--%.*s%s%s", row->letter ? "-" : "", row->letter ? row->letter : "",
                 row->letter ? ", " : "", n, row->names, row->value ? " " : "", row->value ? row->value : "");
        fprintf(out, "    %-38s %s", left, row->help);
        for (const char *alias = row->names + n; *alias;) {
            alias++;
            int len = (int)strcspn(alias, " ");
            fprintf(out, "; also --%.*s", len, alias);
            alias += len;
        }
        fputc('\n', out);
    }
}

/* ---- the man page ---- */

/* Text in troff: dashes are minus signs, and no line begins with a request. */
static void man_text(FILE *out, const char *text)
{
    if (*text == '.' || *text == '\'') fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '-') fputs("\\-", out);
        else if (*text == '\\') fputs("\\e", out);
        else fputc(*text, out);
    }
}

static void man_commands_of(FILE *out, unsigned commands)
{
    const char *between = "";
    for (int i = 0; i < n_command_rows; i++) {
        if (!((unsigned)command_rows[i].command & commands)) continue;
        fprintf(out, "%s%s", between, command_rows[i].name);
        between = ", ";
    }
}

static void man_flag(FILE *out, const OptionRow *row)
{
    fputs(".TP\n", out);
    if (row->letter) fprintf(out, "\\fB\\-%s\\fR, ", row->letter);
    for (const char *name = row->names; *name;) {
        char one[64];
        int n = (int)strcspn(name, " ");
        snprintf(one, sizeof one, "%.*s", n, name);
        fputs(name == row->names ? "\\fB\\-\\-" : ", \\fB\\-\\-", out);
        man_text(out, one);
        fputs("\\fR", out);
        name += n + (name[n] == ' ');
    }
    if (row->value) fprintf(out, " \\fI%s\\fR", row->value);
    fputc('\n', out);
    man_text(out, row->help);
    fputs(". (", out);
    man_commands_of(out, row->commands);
    fputs(")\n", out);
}

void help_man(FILE *out)
{
    fprintf(out, ".TH TANDEM 1 \"\" \"tandem %s\" \"User Commands\"\n", TANDEM_VERSION);
    fputs(".SH NAME\ntandem \\- serves Qwen\\-class language models with drafts that never change an answer\n.SH SYNOPSIS\n", out);
    for (int i = 0; i < n_command_rows; i++) {
        fputs(i ? ".br\n.B tandem " : ".B tandem ", out);
        man_text(out, command_rows[i].usage);
        fputs("\n.RI [ flags ]\n", out);
    }
    fputs(".SH COMMANDS\n", out);
    for (int i = 0; i < n_command_rows; i++) {
        fprintf(out, ".TP\n.B %s\n", command_rows[i].name);
        man_text(out, command_rows[i].about);
        fputc('\n', out);
    }
    fputs(".SH MODEL\nA bundled model (nano, nano\\-plain), a directory with config.json and safetensors, or a Hugging Face id that lies in the\n"
          "local cache. Bundled models are looked for in TANDEM_MODELS, then in ../share/tandem/models beside the program.\n", out);
    fputs(".SH FLAGS\nAfter each flag stand the commands that take it.\n", out);
    for (int i = 0; i < n_option_rows; i++)
        if (option_rows[i].kind != IGNORED) man_flag(out, &option_rows[i]);
    fputs(".SH ENVIRONMENT\nEvery flag can be set as TANDEM_FLAG in the environment or in a file .env of the working directory. The command line beats the\n"
          "environment, that beats .env. EXTRA_ARGS is appended to the command line. TANDEM_LOG_LEVEL: debug, info, warn or error. CPU_MASK:\n"
          "the widest instructions that may be used.\n", out);
    fputs(".SH EXIT STATUS\n0 done, 1 failed, 2 usage, 3 the plan does not fit, 4 a rank or device was lost.\n", out);
}

/* ---- completion ---- */

static void completion_flags(FILE *out, unsigned commands)
{
    for (int i = 0; i < n_option_rows; i++) {
        const OptionRow *row = &option_rows[i];
        if (row->kind == IGNORED || !(row->commands & commands)) continue;
        fprintf(out, " --%.*s", option_name_length(row), row->names);
    }
}

/* Commands first, flags of the command after a dash, else models and files. */
void help_completion(FILE *out)
{
    fputs("_tandem() {\n    local word=${COMP_WORDS[COMP_CWORD]} flags=\n    if [ \"$COMP_CWORD\" = 1 ]; then\n        COMPREPLY=($(compgen -W \"", out);
    for (int i = 0; i < n_command_rows; i++) fprintf(out, "%s%s", i ? " " : "", command_rows[i].name);
    fputs("\" -- \"$word\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", out);
    for (int i = 0; i < n_command_rows; i++) {
        fprintf(out, "    %s) flags=\"", command_rows[i].name);
        completion_flags(out, command_rows[i].command);
        fputs("\" ;;\n", out);
    }
    fputs("    esac\n    if [ \"${word#-}\" != \"$word\" ]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
          "    else COMPREPLY=($(compgen -W \"nano nano-plain\" -- \"$word\") $(compgen -f -- \"$word\")); fi\n}\n"
          "complete -o filenames -F _tandem tandem\n", out);
}
