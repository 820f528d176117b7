/* Parsing by the rows of options_table.c: the command line, the environment, .env; nearest names for unknown ones. */
#include "cli/options_table.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/options_help.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static bool name_in(const char *names, const char *name, size_t n)
{
    for (const char *p = names; *p;) {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, name, n) == 0) return true;
        p += len + (p[len] == ' ');
    }
    return false;
}

static const OptionRow *row_find(const char *name, size_t n, unsigned command)
{
    for (int i = 0; i < n_option_rows; i++)
        if ((option_rows[i].commands & command) && name_in(option_rows[i].names, name, n)) return &option_rows[i];
    return NULL;
}

/* Edit distance, for "did you mean". Names are short: one row of the table on the stack. */
static int distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int row[64];
    if (n_b >= (size_t)COUNT(row)) return 99;
    for (size_t j = 0; j <= n_b; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            corner = row[j];
            row[j] = best;
        }
    }
    return row[n_b];
}

static Status unknown_flag(const char *name, size_t n, unsigned command, Error *err)
{
    int best = 99;
    char nearest[64] = "";
    for (int i = 0; i < n_option_rows; i++) {
        if (!(option_rows[i].commands & command) || option_rows[i].kind == IGNORED) continue;
        for (const char *p = option_rows[i].names; *p;) {
            size_t len = strcspn(p, " ");
            int d = distance(name, n, p, len);
            if (d < best) {
                best = d;
                snprintf(nearest, sizeof nearest, "%.*s", (int)len, p);
            }
            p += len + (p[len] == ' ');
        }
    }
    if (best > (int)n / 2 + 1)
        return error_set(err, ERR_USAGE, "there is no flag --%.*s; --help lists them", (int)n, name);
    return error_set(err, ERR_USAGE, "there is no flag --%.*s; did you mean --%s?", (int)n, name, nearest);
}

/* ---- values ---- */

static Status bad_number(const OptionRow *row, const char *text, Error *err)
{
    int n = (int)strcspn(row->names, " ");
    return error_set(err, ERR_USAGE, "--%.*s must be a%s number in [%.15g, %.15g], got \"%s\"", n, row->names,
                     row->kind == INT ? " whole" : "", row->min, row->max, text);
}

static Status set_number(Options *o, const OptionRow *row, const char *text, Error *err)
{
    char *end = NULL;
    errno = 0;
    if (row->kind == INT) {
        long long v = strtoll(text, &end, 10);
        if (end == text || *end || errno || (double)v < row->min || (double)v > row->max) return bad_number(row, text, err);
        memcpy((char *)o + row->offset, &(int64_t){ v }, sizeof(int64_t));
        return OK;
    }
    double v = strtod(text, &end);
    if (end == text || *end || errno || !(v >= row->min && v <= row->max)) return bad_number(row, text, err);
    memcpy((char *)o + row->offset, &v, sizeof v);
    return OK;
}

static Status set_flag(Options *o, const OptionRow *row, const char *text, Error *err)
{
    bool on = !text || !strcmp(text, "1") || !strcasecmp(text, "true") || !strcasecmp(text, "yes");
    bool off = text && (!strcmp(text, "0") || !strcasecmp(text, "false") || !strcasecmp(text, "no") || !*text);
    if (!on && !off) return error_set(err, ERR_USAGE, "--%s takes no value, got \"%s\"", row->names, text);
    *((bool *)((char *)o + row->offset)) = on;
    return OK;
}

static Status set_value(Options *o, const OptionRow *row, const char *text, FILE *notes, Error *err)
{
    switch (row->kind) {
    case FLAG: return set_flag(o, row, text, err);
    case INT:
    case REAL: return set_number(o, row, text, err);
    case TEXT: *(const char **)((char *)o + row->offset) = text; return OK;
    case TEXTS:
        if (o->source > o->key_source) o->n_api_keys = 0;
        o->key_source = o->source;
        if (o->n_api_keys == OPTIONS_MAX_KEYS) return error_set(err, ERR_USAGE, "more than %d keys", OPTIONS_MAX_KEYS);
        o->api_keys[o->n_api_keys++] = text;
        return OK;
    case IGNORED: fprintf(notes, "tandem: --%s is ignored: %s\n", row->names, row->help); return OK;
    }
    return OK;
}

static bool takes_value(const OptionRow *row)
{
    return row->kind != FLAG && !(row->kind == IGNORED && !row->value);
}

/* ---- the three places ---- */

static Status parse_word(Options *o, int argc, char **argv, int *i, FILE *notes, Error *err)
{
    const char *word = argv[*i];
    if (word[0] != '-' || !word[1]) {
        if (o->model) return error_set(err, ERR_USAGE, "one MODEL is enough: got \"%s\" and \"%s\"", o->model, word);
        o->model = word;
        return OK;
    }
    bool is_long = word[1] == '-';
    const char *name = word + (is_long ? 2 : 1);
    size_t n = is_long ? strcspn(name, "=") : 1;
    const OptionRow *row = NULL;
    if (is_long) {
        row = row_find(name, n, o->command);
    } else {
        for (int k = 0; k < n_option_rows; k++)
            if (option_rows[k].letter && option_rows[k].letter[0] == name[0] && (option_rows[k].commands & o->command)) row = &option_rows[k];
        if (row && name[1] && row->kind == FLAG) row = NULL;
    }
    if (!row) return unknown_flag(name, is_long ? n : strlen(name), o->command, err);
    const char *value = is_long ? (name[n] == '=' ? name + n + 1 : NULL) : (name[1] ? name + 1 : NULL);
    if (takes_value(row) && !value) {
        if (*i + 1 >= argc) return error_set(err, ERR_USAGE, "%s needs a value", word);
        value = argv[++*i];
    }
    return set_value(o, row, value, notes, err);
}

static Status parse_words(Options *o, int argc, char **argv, FILE *notes, Error *err)
{
    Status s = OK;
    for (int i = 0; !s && i < argc; i++) s = parse_word(o, argc, argv, &i, notes, err);
    return s;
}

/* NAME=value of the environment or of .env; names that are no flag of this command are not ours to judge. */
static Status parse_setting(Options *o, const char *setting, FILE *notes, Error *err)
{
    if (strncmp(setting, "TANDEM_", 7) != 0) return OK;
    char name[64];
    size_t n = strcspn(setting + 7, "=");
    if (n >= sizeof name || setting[7 + n] != '=') return OK;
    for (size_t i = 0; i < n; i++) {
        char c = setting[7 + i];
        name[i] = c == '_' ? '-' : (char)tolower((unsigned char)c);
    }
    const OptionRow *row = row_find(name, n, o->command);
    if (!row || row->kind == IGNORED) return OK;
    Status s = set_value(o, row, setting + 7 + n + 1, notes, err);
    if (s) error_prefix(err, "TANDEM_%.*s", (int)n, setting + 7);
    return s;
}

static char *trim(char *line)
{
    while (*line == ' ' || *line == '\t') line++;
    size_t n = strlen(line);
    while (n && strchr(" \t\r", line[n - 1])) line[--n] = 0;
    return line;
}

/* .env: NAME=value a line, # comments, an optional "export " and quotes around the value. */
static Status parse_env_file(Options *o, FILE *notes, Error *err)
{
    char *text = NULL;
    size_t n = 0;
    if (!file_exists(".env")) return OK;
    Status s = file_read(".env", 1 << 20, &text, &n, err);
    o->owned = text;
    for (char *line = text; !s && line && *line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        line = trim(line);
        if (!strncmp(line, "export ", 7)) line = trim(line + 7);
        char *value = strchr(line, '=');
        size_t len = value ? strlen(value) : 0;
        if (len > 2 && (value[1] == '"' || value[1] == '\'') && value[len - 1] == value[1]) {
            value[len - 1] = 0;
            memmove(value + 1, value + 2, len - 2);
        }
        if (*line != '#' && value) s = parse_setting(o, line, notes, err);
        if (s) error_prefix(err, ".env");
        line = next;
    }
    return s;
}

/* Words of EXTRA_ARGS, split at blanks, quotes kept together. */
static Status parse_extra(Options *o, const char *text, FILE *notes, Error *err)
{
    char *words[64], *copy = mem_strdup(text);
    int n = 0;
    if (!copy) return error_set(err, ERR_NOMEM, "no memory for EXTRA_ARGS");
    o->owned_extra = copy;
    for (char *p = copy; *p;) {
        while (*p == ' ') p++;
        if (!*p) break;
        if (n == COUNT(words)) return error_set(err, ERR_USAGE, "EXTRA_ARGS has more than %d words", COUNT(words));
        char quote = *p == '"' || *p == '\'' ? *p++ : ' ';
        words[n++] = p;
        while (*p && *p != quote) p++;
        if (*p) *p++ = 0;
    }
    Status s = parse_words(o, n, words, notes, err);
    if (s) error_prefix(err, "EXTRA_ARGS");
    return s;
}

static int command_find(const char *name)
{
    for (int i = 0; i < n_command_rows; i++)
        if (!strcmp(command_rows[i].name, name)) return i;
    return -1;
}

static Status unknown_command(const char *name, Error *err)
{
    int best = 99, at = 0;
    for (int i = 0; i < n_command_rows; i++) {
        int d = distance(name, strlen(name), command_rows[i].name, strlen(command_rows[i].name));
        if (d < best) { best = d; at = i; }
    }
    if (best > 3) return error_set(err, ERR_USAGE, "there is no command \"%s\"; tandem --help lists them", name);
    return error_set(err, ERR_USAGE, "there is no command \"%s\"; did you mean %s?", name, command_rows[at].name);
}

static bool asks_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help");
}

Status options_parse(Options *o, int argc, char **argv, char **environ_list, FILE *out, FILE *notes, bool *done, Error *err)
{
    *o = (Options){ .temperature = -1, .top_p = -1, .min_p = -1, .top_k = -1, .seed = -1, .port = 8000, .host = "127.0.0.1",
                    .runs = 9 };
    *done = argc < 2 || asks_help(argv[1]) || !strcmp(argv[1], "--version");
    if (*done) {
        if (argc > 1 && !strcmp(argv[1], "--version")) fprintf(out, "tandem %s\n", TANDEM_VERSION);
        else help_commands(out);
        return argc < 2 ? error_set(err, ERR_USAGE, "which command?") : OK;
    }
    int command = command_find(argv[1]);
    if (command < 0) return unknown_command(argv[1], err);
    o->command = command_rows[command].command;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") && strcmp(argv[i], "-h")) continue;
        help_flags(out, command);
        *done = true;
        return OK;
    }
    o->source = 1;
    Status s = parse_env_file(o, notes, err);
    const char *extra = NULL;
    o->source = 2;
    for (char **e = environ_list; !s && *e; e++) {
        if (!strncmp(*e, "TANDEM_EXTRA_ARGS=", 18)) extra = *e + 18;
        else if (!strncmp(*e, "EXTRA_ARGS=", 11) && !extra) extra = *e + 11;
        else s = parse_setting(o, *e, notes, err);
    }
    o->source = 3;
    if (!s) s = parse_words(o, argc - 2, argv + 2, notes, err);
    if (!s && extra) s = parse_extra(o, extra, notes, err);
    if (!s && !o->model && command_rows[command].needs_model)
        s = error_set(err, ERR_USAGE, "which MODEL? usage: tandem %s [flags]", command_rows[command].usage);
    return s;
}

void options_free(Options *o)
{
    mem_free(o->owned);
    mem_free(o->owned_extra);
    o->owned = o->owned_extra = NULL;
}
