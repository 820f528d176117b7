/* What the commands share: flags to stack options, sampling defaults, Ctrl-C. */
#include "cli/command.h"

#include "base/log.h"

#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

int command_exit_code(Status s)
{
    switch (s) {
    case OK: return 0;
    case ERR_USAGE: return 2;
    case ERR_PLAN: return 3;
    case ERR_LOST: return 4;
    default: return 1;
    }
}

static Status one_of(const char *flag, const char *value, const char *const *names, int n, int *at, Error *err)
{
    *at = 0;
    if (!value) return OK;
    char list[128] = "";
    for (int i = 0; i < n; i++) {
        if (!strcmp(value, names[i])) {
            *at = i;
            return OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    return error_set(err, ERR_USAGE, "--%s must be one of %s, got \"%s\"", flag, list, value);
}

static Status refuse_later(const Options *o, Error *err)
{
    if (o->tensor_parallel_size > 1)
        return error_set(err, ERR_UNSUPPORTED, "--tensor-parallel-size %d: this version runs on one rank", (int)o->tensor_parallel_size);
    return OK;
}

/* fp8 without a kind is E4M3, as elsewhere. */
static Status kv_dtype(const Options *o, DType *out, Error *err)
{
    static const char *const names[] = { "auto", "bfloat16", "float32", "fp8", "fp8_e4m3", "bf16" };
    static const DType types[] = { DT_NONE, DT_BF16, DT_F32, DT_F8_E4M3, DT_F8_E4M3, DT_BF16 };
    int at;
    Status s = one_of("kv-cache-dtype", o->kv_cache_dtype, names, COUNT(names), &at, err);
    if (!s) *out = types[at];
    return s;
}

static Status quantization(const Options *o, QuantFormat *out, Error *err)
{
    static const char *const names[] = { "none", "auto", "fp8", "nvfp4" };
    static const QuantFormat formats[] = { QUANT_NONE, QUANT_NONE, QUANT_FP8, QUANT_NVFP4 };
    int at;
    Status s = one_of("quantization", o->quantization, names, COUNT(names), &at, err);
    if (!s) *out = formats[at];
    return s;
}

/* Without a word about it, people who serve or chat get drafts; `plan` shows what serve would take. The others measure and
 * compare, so they do what they are told. */
static SpecMethod default_method(const Options *o)
{
    return o->command & (CMD_SERVE | CMD_CHAT | CMD_PLAN) ? SPEC_AUTO : SPEC_NONE;
}

static Status speculation_flags(const Options *o, SpeculativeConfig *out, Error *err)
{
    SglangSpeculation flags = { .algorithm = o->speculative_algorithm, .draft_model_path = o->speculative_draft_model_path,
                                .num_steps = o->speculative_num_steps, .eagle_topk = o->speculative_eagle_topk,
                                .num_draft_tokens = o->speculative_num_draft_tokens };
    bool is_sglang = flags.algorithm || flags.draft_model_path || flags.num_steps || flags.eagle_topk || flags.num_draft_tokens;
    *out = (SpeculativeConfig){ .method = default_method(o) };
    if (o->speculative_config && is_sglang)
        return error_set(err, ERR_USAGE, "say it once: --speculative-config or the other --speculative flags");
    if (o->speculative_config) return speculative_config_parse(out, o->speculative_config, strlen(o->speculative_config), err);
    return is_sglang ? speculative_config_sglang(out, &flags, err) : OK;
}

Status command_stack_options(const Options *o, StackOptions *out, Error *err)
{
    static const char *const dtypes[] = { "auto", "bfloat16", "bf16", "float32", "f32", "float" };
    static const DType dtype_of[] = { DT_NONE, DT_BF16, DT_BF16, DT_F32, DT_F32, DT_F32 };
    static const char *const formats[] = { "auto", "safetensors", "dummy" };
    static const char *const devices[] = { "auto", "cpu", "cuda" }; /* in the order of DeviceChoice */
    int dtype, format, device;
    DType kv = DT_NONE;
    QuantFormat rounding = QUANT_NONE;
    Status s = one_of("dtype", o->dtype, dtypes, COUNT(dtypes), &dtype, err);
    if (!s) s = one_of("load-format", o->load_format, formats, COUNT(formats), &format, err);
    if (!s) s = one_of("device", o->device, devices, COUNT(devices), &device, err);
    if (!s) s = kv_dtype(o, &kv, err);
    if (!s) s = quantization(o, &rounding, err);
    if (!s) s = refuse_later(o, err);
    if (s) return s;
    SpeculativeConfig speculation;
    s = speculation_flags(o, &speculation, err);
    if (s) return s;
    *out = (StackOptions){
        .model = o->model,
        .speculation = speculation,
        .dtype = dtype_of[dtype],
        .kv_dtype = kv,
        .load_format = format == 2 ? LOAD_DUMMY : LOAD_AUTO,
        .quantization = rounding,
        .backend = { .n_workers = (int)o->workers, .cpuset = o->cpuset, .device = (DeviceChoice)device },
        .chat_template = o->chat_template,
        .max_model_len = (int32_t)o->max_model_len,
        .max_num_seqs = (int32_t)o->max_num_seqs,
        .max_num_batched_tokens = (int32_t)o->max_num_batched_tokens,
        .block_size = (int32_t)o->block_size,
        .memory_fraction = o->memory_utilization,
    };
    return OK;
}

Status command_ask_device(StackOptions *options, Error *err)
{
    Backend *backend = NULL;
    if (options->backend.device == DEVICE_CPU) return OK;
    Status s = backend_open(&backend, &options->backend, err);
    if (s) return s;
    stack_options_size(options, backend);
    backend_close(backend);
    return OK;
}

Status command_explain_plan(const StackOptions *options, Status s, Error *err)
{
    char dir[4096];
    StackOptions plain = *options;
    Plan plan;
    if (s != ERR_PLAN || options->speculation.method == SPEC_NONE) return s;
    plain.speculation = (SpeculativeConfig){ .method = SPEC_NONE };
    if (command_ask_device(&plain, NULL) || model_find(options->model, dir, sizeof dir, NULL) || stack_plan(&plain, dir, &plan, NULL)) return s;
    Error old = *err;
    error_clear(err);
    return error_set_param(err, s, old.param, "%s; without drafts (--speculative-config '{\"method\": \"none\"}') it fits", old.text);
}

Status command_sample_params(const Options *o, const Stack *s, SampleParams *p, Error *err)
{
    stack_default_params(s, p);
    if (o->temperature >= 0) p->temperature = (float)o->temperature;
    if (o->top_p >= 0) p->top_p = (float)o->top_p;
    if (o->min_p >= 0) p->min_p = (float)o->min_p;
    if (o->top_k >= 0) p->top_k = (int32_t)o->top_k;
    return sample_params_check(p, s->config.vocab_size, err);
}

uint64_t command_seed(const Options *o)
{
    uint64_t seed = (uint64_t)o->seed;
    if (o->seed < 0 && getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = (uint64_t)getpid();
    return seed & INT64_MAX; /* so that it can be given back as a flag */
}

static volatile sig_atomic_t interrupts;

static void on_interrupt(int signal_number)
{
    if (interrupts++ > 0) _exit(128 + signal_number);
}

void command_catch_interrupt(void)
{
    struct sigaction action = { .sa_handler = on_interrupt };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool command_interrupted(void)
{
    return interrupts != 0;
}

void command_clear_interrupt(void)
{
    interrupts = 0;
}

Status command_render(const Stack *s, const char *system, const char *user, Buf *out, Error *err)
{
    if (!s->chat_template) return error_set(err, ERR_INPUT, "this model has no chat template; leave --chat away");
    json_t *messages = json_array();
    if (system) json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_t *message = json_pack("{s:s, s:s}", "role", "user", "content", user);
    Status status = messages && message ? OK : error_set(err, ERR_INPUT, "the text is not valid UTF-8");
    json_array_append_new(messages, message);
    ChatInput in = { .messages = messages, .add_generation_prompt = true };
    if (!status) status = chat_template_render(s->chat_template, &in, out, err);
    json_decref(messages);
    return status;
}
