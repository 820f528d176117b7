/* The flags of every command, in one table: parsing, environment, --help and the man page come from the same rows.
 *
 * Precedence: command line, then TANDEM_<FLAG> in the environment, then the same in ./.env. Of a flag given twice the
 * last counts; TANDEM_EXTRA_ARGS (or EXTRA_ARGS) is appended to the command line. */
#pragma once

#include "base/error.h"

#include <stdint.h>
#include <stdio.h>

enum { OPTIONS_MAX_KEYS = 16 };

typedef enum Command {
    CMD_RUN = 1 << 0,
    CMD_CHAT = 1 << 1,
    CMD_SERVE = 1 << 2,
    CMD_VERIFY = 1 << 3,
    CMD_LOGITS = 1 << 4,
    CMD_TOKENIZE = 1 << 5,
    CMD_BENCH = 1 << 6,
    CMD_PLAN = 1 << 7,
    CMD_PERPLEXITY = 1 << 8,
    CMD_MAN = 1 << 9,
    CMD_COMPLETION = 1 << 10,
} Command;

typedef struct Options {
    Command     command;
    const char *model;                     /* the positional argument; NULL = none */

    /* what to say */
    const char *prompt, *prompts, *system;
    bool        chat, ignore_eos, json;
    int64_t     n_tokens;                  /* -n; 0 = what the context leaves */
    double      temperature, top_p, min_p; /* < 0 = not given */
    int64_t     top_k, seed;               /* -1 = not given */

    /* files */
    const char *ids, *inputs, *output, *file;
    int64_t     ctx_size;                  /* tokens of a scored window; 0 = default */

    /* the model and its memory */
    const char *dtype, *load_format, *quantization, *kv_cache_dtype, *device, *chat_template, *cpuset;
    int64_t     max_model_len, max_num_seqs, max_num_batched_tokens, block_size, workers, tensor_parallel_size;
    double      memory_utilization;
    const char *speculative_config;
    const char *speculative_algorithm, *speculative_draft_model_path; /* SGLang's names for the same */
    int64_t     speculative_num_steps, speculative_eagle_topk, speculative_num_draft_tokens;

    /* the server */
    const char *host, *served_model_name, *api_key_file, *default_chat_template_kwargs;
    int64_t     port;
    const char *api_keys[OPTIONS_MAX_KEYS];
    int64_t     n_api_keys;
    int         key_source;                /* where they come from: 1 .env, 2 environment, 3 command line: the strongest alone counts */
    bool        no_auth;
    const char *allowed_origins;           /* JSON list, as vLLM takes it, or one origin */

    /* verify, bench */
    bool        full, quick, read_stream, limits;
    int64_t     runs;
    const char *synthetic_acceptance;

    int         source;                    /* while parsing: which of the three is being read */
    void       *owned, *owned_extra;       /* texts of .env and of EXTRA_ARGS; options_free */
} Options;

/* argv[1] is the command. ERR_USAGE with the nearest name for an unknown flag; notes about flags that mean nothing here
 * go to `notes`, a line each. --help prints to `out` and sets *done. */
Status options_parse(Options *o, int argc, char **argv, char **environ_list, FILE *out, FILE *notes, bool *done, Error *err);
void   options_free(Options *o);
