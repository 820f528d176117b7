/* Flags as rows of one table; see options.h. A row says how a flag is called (its own name, then the names users know from
 * elsewhere), which commands take it, where its value goes and what to say about it. */
#include "cli/options_table.h"

#define AT(field) offsetof(Options, field)
#define ANSWERS   (CMD_RUN | CMD_CHAT)
#define LOADS     (CMD_RUN | CMD_CHAT | CMD_SERVE | CMD_VERIFY | CMD_LOGITS | CMD_BENCH | CMD_PLAN | CMD_PERPLEXITY)
#define BATCHES   (CMD_SERVE | CMD_PLAN)

const OptionRow option_rows[] = {
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
    { "file", "f", TEXT, CMD_PERPLEXITY, AT(file), 0, 0, "FILE", "the text to score" },
    { "ctx-size", "c", INT, CMD_PERPLEXITY, AT(ctx_size), 8, 1e6, "N", "tokens of a window; the second half of each is scored (default 512)" },
    { "prompts", NULL, TEXT, CMD_VERIFY, AT(prompts), 0, 0, "FILE", "JSON array of strings to use as prompts" },
    { "full", NULL, FLAG, CMD_VERIFY, AT(full), 0, 0, NULL, "every cell of the grid" },
    { "quick", NULL, FLAG, CMD_VERIFY, AT(quick), 0, 0, NULL, "a few seconds' worth of the grid" },
    { "synthetic-acceptance", NULL, TEXT, CMD_BENCH, AT(synthetic_acceptance), 0, 0, "P,P,...", "drafts right with these probabilities by depth, a drafter really run" },
    { "read-stream", NULL, FLAG, CMD_BENCH, AT(read_stream), 0, 0, NULL, "only how fast memory is read, in GB/s; no MODEL" },
    { "limits", NULL, FLAG, CMD_BENCH, AT(limits), 0, 0, NULL, "speed beside the limits of a real model, too" },
    { "runs", NULL, INT, CMD_BENCH, AT(runs), 1, 1000, "N", "interleaved runs behind each median (default 9)" },

    { "dtype", NULL, TEXT, LOADS, AT(dtype), 0, 0, "D", "auto, bfloat16 or float32: operands of every product" },
    { "load-format", NULL, TEXT, LOADS, AT(load_format), 0, 0, "F", "auto, safetensors, or dummy: made-up weights of the config's shapes" },
    { "max-model-len context-length", NULL, INT, LOADS, AT(max_model_len), 1, 1e9, "N", "prompt + answer, tokens" },
    { "max-num-seqs max-running-requests", NULL, INT, BATCHES, AT(max_num_seqs), 1, 1024, "N", "answers at a time" },
    { "max-num-batched-tokens chunked-prefill-size", NULL, INT, BATCHES, AT(max_num_batched_tokens), 1, 4096, "N", "rows of one pass" },
    { "block-size page-size", NULL, INT, BATCHES, AT(block_size), 1, 512, "N", "tokens of a cache block" },
    { "gpu-memory-utilization mem-fraction-static", NULL, REAL, LOADS, AT(memory_utilization), 0.01, 1, "F", "share of the free memory that the plan may use (default 0.9)" },
    { "tensor-parallel-size tp-size", NULL, INT, BATCHES, AT(tensor_parallel_size), 1, 64, "N", "ranks; 1 for now" },
    { "kv-cache-dtype", NULL, TEXT, LOADS, AT(kv_cache_dtype), 0, 0, "D", "auto (as --dtype), bfloat16, float32, or fp8: E4M3 codes, half of bfloat16's memory; on CPUs" },
    { "quantization", NULL, TEXT, LOADS, AT(quantization), 0, 0, "Q", "fp8 or nvfp4: round the linears of the layers of a bf16, f16 or f32 checkpoint while loading; embedding, head, norms, in_proj_a and in_proj_b, and drafters stay as they are; on CPUs" },
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

const int n_option_rows = COUNT(option_rows);

const CommandRow command_rows[] = {
    { "run", CMD_RUN, "run MODEL -p TEXT", "one completion to standard output", true },
    { "chat", CMD_CHAT, "chat MODEL", "talk to a model; /help there lists its commands", true },
    { "serve", CMD_SERVE, "serve MODEL", "the server with the OpenAI API", true },
    { "verify", CMD_VERIFY, "verify MODEL", "prove that drafted output equals plain output, bit for bit", true },
    { "logits", CMD_LOGITS, "logits MODEL --ids FILE -o OUT", "logits of every position, for comparisons", true },
    { "tokenize", CMD_TOKENIZE, "tokenize MODEL -p TEXT", "token ids of a text, no template added", true },
    { "perplexity", CMD_PERPLEXITY, "perplexity MODEL -f FILE", "how surprising a text is to the model", true },
    { "bench", CMD_BENCH, "bench [MODEL]", "plain and drafted speed; of made-up weights, speed beside the limits", false },
    { "plan", CMD_PLAN, "plan MODEL", "the memory that serve would take with these flags; nothing is allocated", true },
    { "man", CMD_MAN, "man", "the manual page, as troff: tandem man | man -l -", false },
    { "completion", CMD_COMPLETION, "completion", "shell completion: source <(tandem completion)", false },
};

const int n_command_rows = COUNT(command_rows);
