/* Flags as rows of one table; see options.h.
 *
 * A row says how a flag is called (its own name, then the names users know from elsewhere), which commands take it, where
 * its value goes and what to say about it. Parsing, the environment, nearest-name suggestions and --help only walk rows. */
#include "cli/options.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum Kind { FLAG, INT, REAL, TEXT, TEXTS, IGNORED } Kind;

typedef struct Row {
    const char *names;  /* "max-model-len context-length": the first is ours */
    const char *letter; /* short form without the dash, or NULL */
    Kind        kind;
    unsigned    commands;
    size_t      offset;
    double      min, max; /* INT, REAL */
    const char *value;    /* how --help calls the value */
    const char *help;
} Row;

#define AT(field) offsetof(Options, field)
#define ANSWERS   (CMD_RUN | CMD_CHAT)
#define LOADS     (CMD_RUN | CMD_CHAT | CMD_SERVE | CMD_VERIFY | CMD_LOGITS | CMD_BENCH | CMD_PLAN)
#define BATCHES   (CMD_SERVE | CMD_PLAN)

static const Row rows[] = {
    { "prompt", "p", TEXT, CMD_RUN | CMD_TOKENIZE, AT(prompt), 0, 0, "TEXT", "the text, as it is: special tokens included, no template" },
    { "chat", NULL, FLAG, CMD_RUN, AT(chat), 0, 0, NULL, "wrap the text as a user's message" },
    { "system", NULL, TEXT, ANSWERS, AT(system), 0, 0, "TEXT", "system message in front (with --chat)" },
    { "max-tokens", "n", INT, ANSWERS | CMD_BENCH, AT(n_tokens), 1, 1e7, "N", "at most N new tokens (default: what the context leaves)" },
    { "temperature", NULL, REAL, ANSWERS | CMD_VERIFY | CMD_BENCH, AT(temperature), 0, 2, "T", "0 = always the most likely token (default: the model's own)" },
    { "top-p", NULL, REAL, ANSWERS, AT(top_p), 0, 1, "P", "smallest set of tokens with this mass" },
    { "min-p", NULL, REAL, ANSWERS, AT(min_p), 0, 1, "P", "tokens at least P times as likely as the best" },
    { "top-k", NULL, INT, ANSWERS, AT(top_k), 0, 1e7, "K", "the K most likely tokens; 0 = all" },
    { "seed", NULL, INT, ANSWERS | CMD_SERVE, AT(seed), 0, 9.2e18, "N", "same seed, same answer (default: a fresh one)" },
    { "ignore-eos", NULL, FLAG, CMD_RUN, AT(ignore_eos), 0, 0, NULL, "do not stop at an end token" },
    { "json", NULL, FLAG, CMD_RUN | CMD_TOKENIZE | CMD_PLAN, AT(json), 0, 0, NULL, "print one JSON object" },
    { "ids", NULL, TEXT, CMD_LOGITS, AT(ids), 0, 0, "FILE", "JSON list of token ids" },
    { "inputs", NULL, TEXT, CMD_LOGITS, AT(inputs), 0, 0, "FILE", "safetensors with further inputs (pixel_values ...)" },
    { "output", "o", TEXT, CMD_LOGITS, AT(output), 0, 0, "FILE", "safetensors to write: logits [T, V] float32" },
    { "prompts", NULL, TEXT, CMD_VERIFY, AT(prompts), 0, 0, "FILE", "JSON array of strings to use as prompts" },
    { "full", NULL, FLAG, CMD_VERIFY, AT(full), 0, 0, NULL, "every cell of the grid" },
    { "quick", NULL, FLAG, CMD_VERIFY, AT(quick), 0, 0, NULL, "a few seconds' worth of the grid" },
    { "synthetic-acceptance", NULL, TEXT, CMD_BENCH, AT(synthetic_acceptance), 0, 0, "P,P,...", "drafts right with these probabilities by depth, a drafter really run" },
    { "runs", NULL, INT, CMD_BENCH, AT(runs), 1, 1000, "N", "interleaved runs behind each median (default 9)" },

    { "dtype", NULL, TEXT, LOADS, AT(dtype), 0, 0, "D", "auto, bfloat16 or float32: operands of every product" },
    { "load-format", NULL, TEXT, LOADS, AT(load_format), 0, 0, "F", "auto, safetensors, or dummy: made-up weights of the config's shapes" },
    { "max-model-len context-length", NULL, INT, LOADS, AT(max_model_len), 1, 1e9, "N", "prompt + answer, tokens" },
    { "max-num-seqs max-running-requests", NULL, INT, BATCHES, AT(max_num_seqs), 1, 1024, "N", "answers at a time" },
    { "max-num-batched-tokens chunked-prefill-size", NULL, INT, BATCHES, AT(max_num_batched_tokens), 1, 4096, "N", "rows of one pass" },
    { "block-size page-size", NULL, INT, BATCHES, AT(block_size), 1, 512, "N", "tokens of a cache block" },
    { "gpu-memory-utilization mem-fraction-static", NULL, REAL, LOADS, AT(memory_utilization), 0.01, 1, "F", "share of the free memory that the plan may use (default 0.9)" },
    { "tensor-parallel-size tp-size", NULL, INT, BATCHES, AT(tensor_parallel_size), 1, 64, "N", "ranks; 1 for now" },
    { "kv-cache-dtype", NULL, TEXT, BATCHES, AT(kv_cache_dtype), 0, 0, "D", "auto: as --dtype" },
    { "quantization", NULL, TEXT, BATCHES, AT(quantization), 0, 0, "Q", "none for now" },
    { "device", NULL, TEXT, LOADS, AT(device), 0, 0, "D", "auto, cpu or cuda" },
    { "cpuset", NULL, TEXT, LOADS, AT(cpuset), 0, 0, "LIST", "pin workers to these processors, e.g. 0-3,8" },
    { "workers threads", NULL, INT, LOADS, AT(workers), 1, 1024, "N", "threads that compute (default: one a processor)" },
    { "chat-template", NULL, TEXT, ANSWERS | CMD_SERVE, AT(chat_template), 0, 0, "FILE", "Jinja file instead of the model's own" },
    { "speculative-config", NULL, TEXT, ANSWERS | BATCHES | CMD_BENCH, AT(speculative_config), 0, 0, "JSON", "{\"method\": auto|mtp|dflash|ddtree|ngram|none, \"model\": DRAFTER, \"num_speculative_tokens\": N, \"tree_budget\": B} (default: auto for serve, chat and plan, none elsewhere)" },
    { "speculative-algorithm", NULL, TEXT, ANSWERS | BATCHES, AT(speculative_algorithm), 0, 0, "NAME", "NEXTN, DFLASH, DDTREE, NGRAM: SGLang's way to say it" },
    { "speculative-draft-model-path", NULL, TEXT, ANSWERS | BATCHES, AT(speculative_draft_model_path), 0, 0, "PATH", "the drafter" },
    { "speculative-num-steps", NULL, INT, ANSWERS | BATCHES, AT(speculative_num_steps), 1, 31, "N", "drafted tokens of a chain" },
    { "speculative-eagle-topk", NULL, INT, ANSWERS | BATCHES, AT(speculative_eagle_topk), 1, 64, "K", "1: MTP drafts are chains" },
    { "speculative-num-draft-tokens", NULL, INT, ANSWERS | BATCHES, AT(speculative_num_draft_tokens), 2, 1024, "N", "rows of a verify pass, anchor included" },

    { "host", NULL, TEXT, CMD_SERVE, AT(host), 0, 0, "ADDR", "address to listen on (default 127.0.0.1)" },
    { "port", NULL, INT, CMD_SERVE, AT(port), 0, 65535, "N", "port (default 8000; 0 = any free one)" },
    { "api-key", NULL, TEXTS, CMD_SERVE, AT(api_keys), 0, 0, "KEY", "clients must send this key; may be repeated. Better: file or TANDEM_API_KEY" },
    { "api-key-file", NULL, TEXT, CMD_SERVE, AT(api_key_file), 0, 0, "FILE", "keys, one a line" },
    { "no-auth", NULL, FLAG, CMD_SERVE, AT(no_auth), 0, 0, NULL, "listen on an open address without a key" },
    { "allowed-origins", NULL, TEXT, CMD_SERVE, AT(allowed_origins), 0, 0, "JSON", "web pages that may call: [\"https://a.example\"] or [\"*\"] (default: none)" },
    { "served-model-name", NULL, TEXT, CMD_SERVE, AT(served_model_name), 0, 0, "NAME", "name in the API (default: last part of MODEL)" },
    { "default-chat-template-kwargs", NULL, TEXT, CMD_SERVE, AT(default_chat_template_kwargs), 0, 0, "JSON", "template arguments when a request gives none" },

    /* Known elsewhere, without a meaning here: one line, then ignored. */
    { "trust-remote-code", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "no remote code is ever run" },
    { "enforce-eager", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "there is nothing to capture on this device" },
    { "disable-log-requests", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "requests are not logged" },
    { "disable-log-stats", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "statistics are at /metrics" },
    { "enable-chunked-prefill", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "prompts are always computed in chunks" },
    { "enable-prefix-caching", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "prompts are not kept yet; answers would be the same" },
    { "no-enable-prefix-caching", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "prompts are not kept" },
    { "disable-radix-cache", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "prompts are not kept" },
    { "enable-auto-tool-choice", NULL, IGNORED, ~0u, 0, 0, 0, NULL, "tool calls come as text for now" },
    { "uvicorn-log-level", NULL, IGNORED, ~0u, 0, 0, 0, "L", "there is no uvicorn; TANDEM_LOG_LEVEL sets ours" },
    { "tool-call-parser", NULL, IGNORED, ~0u, 0, 0, 0, "P", "tool calls come as text for now" },
    { "reasoning-parser", NULL, IGNORED, ~0u, 0, 0, 0, "P", "reasoning comes as text for now" },
    { "swap-space", NULL, IGNORED, ~0u, 0, 0, 0, "N", "nothing is swapped out" },
    { "distributed-executor-backend", NULL, IGNORED, ~0u, 0, 0, 0, "B", "one rank needs none" },
    { "attention-backend", NULL, IGNORED, ~0u, 0, 0, 0, "B", "there is one attention" },
};

static const struct {
    const char *name;
    Command     command;
    const char *usage, *about;
} commands[] = {
    { "run", CMD_RUN, "run MODEL -p TEXT", "one completion to standard output" },
    { "chat", CMD_CHAT, "chat MODEL", "talk to a model, a line at a time" },
    { "serve", CMD_SERVE, "serve MODEL", "the server with the OpenAI API" },
    { "verify", CMD_VERIFY, "verify MODEL", "prove that drafted output equals plain output, bit for bit" },
    { "logits", CMD_LOGITS, "logits MODEL --ids FILE -o OUT", "logits of every position, for comparisons" },
    { "tokenize", CMD_TOKENIZE, "tokenize MODEL -p TEXT", "token ids of a text, no template added" },
    { "bench", CMD_BENCH, "bench [MODEL]", "plain and drafted speed; of made-up weights, speed beside the limits" },
    { "plan", CMD_PLAN, "plan MODEL", "the memory that serve would take with these flags; nothing is allocated" },
};

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

static const Row *row_find(const char *name, size_t n, unsigned command)
{
    for (int i = 0; i < COUNT(rows); i++)
        if ((rows[i].commands & command) && name_in(rows[i].names, name, n)) return &rows[i];
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
    for (int i = 0; i < COUNT(rows); i++) {
        if (!(rows[i].commands & command) || rows[i].kind == IGNORED) continue;
        for (const char *p = rows[i].names; *p;) {
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

static Status bad_number(const Row *row, const char *text, Error *err)
{
    int n = (int)strcspn(row->names, " ");
    return error_set(err, ERR_USAGE, "--%.*s must be a%s number in [%.15g, %.15g], got \"%s\"", n, row->names,
                     row->kind == INT ? " whole" : "", row->min, row->max, text);
}

static Status set_number(Options *o, const Row *row, const char *text, Error *err)
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

static Status set_flag(Options *o, const Row *row, const char *text, Error *err)
{
    bool on = !text || !strcmp(text, "1") || !strcasecmp(text, "true") || !strcasecmp(text, "yes");
    bool off = text && (!strcmp(text, "0") || !strcasecmp(text, "false") || !strcasecmp(text, "no") || !*text);
    if (!on && !off) return error_set(err, ERR_USAGE, "--%s takes no value, got \"%s\"", row->names, text);
    *((bool *)((char *)o + row->offset)) = on;
    return OK;
}

static Status set_value(Options *o, const Row *row, const char *text, FILE *notes, Error *err)
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

static bool takes_value(const Row *row)
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
    const Row *row = NULL;
    if (is_long) {
        row = row_find(name, n, o->command);
    } else {
        for (int k = 0; k < COUNT(rows); k++)
            if (rows[k].letter && rows[k].letter[0] == name[0] && (rows[k].commands & o->command)) row = &rows[k];
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
    const Row *row = row_find(name, n, o->command);
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

/* ---- help ---- */

static void help_commands(FILE *out)
{
    fprintf(out, "tandem %s: serves Qwen-class models with drafts that never change an answer.\n\n", TANDEM_VERSION);
    for (int i = 0; i < COUNT(commands); i++) fprintf(out, "    tandem %-34s %s\n", commands[i].usage, commands[i].about);
    fprintf(out,
            "\nMODEL is nano or nano-plain (bundled), a directory, or a Hugging Face id in the local cache.\n"
            "tandem COMMAND --help lists its flags. Every flag can be set as TANDEM_<FLAG> in the environment or in .env; the\n"
            "command line beats the environment, that beats .env; EXTRA_ARGS is appended to the command line.\n"
            "Exit codes: 0 done, 1 failed, 2 usage, 3 the plan does not fit, 4 a rank or device was lost.\n");
}

static void help_flags(FILE *out, int command)
{
    fprintf(out, "tandem %s [flags]: %s\n\n", commands[command].usage, commands[command].about);
    for (int i = 0; i < COUNT(rows); i++) {
        const Row *row = &rows[i];
        if (!(row->commands & commands[command].command) || row->kind == IGNORED) continue;
        char left[96];
        int n = (int)strcspn(row->names, " ");
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

static int command_find(const char *name)
{
    for (int i = 0; i < COUNT(commands); i++)
        if (!strcmp(commands[i].name, name)) return i;
    return -1;
}

static Status unknown_command(const char *name, Error *err)
{
    int best = 99, at = 0;
    for (int i = 0; i < COUNT(commands); i++) {
        int d = distance(name, strlen(name), commands[i].name, strlen(commands[i].name));
        if (d < best) { best = d; at = i; }
    }
    if (best > 3) return error_set(err, ERR_USAGE, "there is no command \"%s\"; tandem --help lists them", name);
    return error_set(err, ERR_USAGE, "there is no command \"%s\"; did you mean %s?", name, commands[at].name);
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
    o->command = commands[command].command;
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
    if (!s && !o->model && o->command != CMD_BENCH)
        s = error_set(err, ERR_USAGE, "which MODEL? usage: tandem %s [flags]", commands[command].usage);
    return s;
}

void options_free(Options *o)
{
    mem_free(o->owned);
    mem_free(o->owned_extra);
    o->owned = o->owned_extra = NULL;
}
