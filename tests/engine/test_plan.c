/* The memory plan: what it counts is what is taken, what it refuses comes with a flag that helps. */
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "engine/plan.h"
#include "support/fake_drafter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t MB = 1 << 20;

static const char *model_dir(const char *name)
{
    static char dir[4096];
    snprintf(dir, sizeof dir, "%s/models/%s", getenv("TANDEM_SOURCE_ROOT"), name);
    return dir;
}

static PlanInput input_of(const char *name, uint64_t available)
{
    return (PlanInput){ .dir = model_dir(name), .available_bytes = available };
}

static void make(Plan *plan, const PlanInput *in)
{
    Error err = { 0 };
    if (plan_make(plan, in, &err)) fail_msg("%s", err.text);
}

static void test_defaults(void **state)
{
    Plan p;
    PlanInput in = input_of("nano", 8000 * MB);
    make(&p, &in);
    assert_int_equal(p.engine.max_model_len, 4096);
    assert_int_equal(p.engine.max_num_seqs, 8);
    assert_int_equal(p.engine.max_num_batched_tokens, 512);
    assert_int_equal(p.engine.n_blocks, 8 * 4096 / 16); /* every sequence at full length */
    assert_int_equal(p.limits.max_rows, 512);
    assert_int_equal(p.total_bytes, p.weight_bytes + p.scratch_bytes + p.pass_bytes + p.token_cache_bytes +
                                        p.state_bytes + p.table_bytes + p.request_bytes + p.page_bytes);
    assert_int_equal(p.lasting_bytes, p.total_bytes - p.request_bytes);
    assert_int_equal(plan_full_requests(&p), 8);
    assert_true(p.total_bytes <= p.budget_bytes && p.budget_bytes == (size_t)(8000 * MB * 0.9));
}

/* What model and engine really take stays within the plan, and the plan is no fantasy. */
static void check_against_reality(const char *name, int32_t draft_nodes)
{
    Plan p;
    Backend *backend;
    Model *model;
    Engine *engine;
    Error err = { 0 };
    PlanInput in = input_of(name, 8000 * MB);
    in.engine.draft_nodes = draft_nodes;
    in.engine.draft_depth = 8;
    make(&p, &in);
    assert_int_equal(backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 1 }, &err), OK);
    ModelOptions mo = { .limits = p.limits };
    if (model_open(&model, in.dir, backend, &mo, &err)) fail_msg("%s", err.text);
    if (engine_open(&engine, model, backend, NULL, &p.engine, &err)) fail_msg("%s", err.text);
    size_t planned = p.lasting_bytes - p.page_bytes;
    assert_in_range(backend_bytes(backend), planned * 9 / 10, planned);
    engine_close(engine);
    backend_close(backend);
}

static void test_reality(void **state)
{
    check_against_reality("nano", 0);
    check_against_reality("nano", 33);
    check_against_reality("nano-plain", 16);
}

/* From nothing to plenty: it fits, or a refusal names a flag, and with that flag it does fit. */
static void check_advice(const PlanInput *in, const char *flag, const char *value)
{
    Plan p;
    PlanInput helped = *in;
    double number = strtod(value, NULL);
    if (!strcmp(flag, "--max-model-len"))
        helped.engine.max_model_len = (int32_t)number;
    else if (!strcmp(flag, "--max-num-seqs"))
        helped.engine.max_num_seqs = (int32_t)number;
    else if (!strcmp(flag, "--max-num-batched-tokens"))
        helped.engine.max_num_batched_tokens = (int32_t)number;
    else if (!strcmp(flag, "--gpu-memory-utilization"))
        helped.memory_fraction = number;
    else
        fail_msg("no such flag: %s", flag);
    make(&p, &helped);
    assert_true(p.total_bytes <= p.budget_bytes);
}

static void test_refusals_help(void **state)
{
    int n_fit = 0, n_helped = 0, n_hopeless = 0, n_flags[3] = { 0 };
    static const char *const flags[] = { "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens" };
    for (int32_t length = 0; length <= 4096; length += 2048) {
        for (uint64_t available = 8 * MB; available < 400 * MB; available = available * 21 / 20) {
            PlanInput in = input_of("nano", available);
            in.engine.max_model_len = length;
            in.engine.max_request_bytes = 4 * MB;
            if (available % 3 == 0) in.engine.max_num_seqs = 64;
            if (available % 3 == 1) in.engine.max_num_seqs = 1, in.engine.max_num_batched_tokens = 16;
            Plan p;
            Error err = { 0 };
            Status s = plan_make(&p, &in, &err);
            if (!s) {
                n_fit++;
                assert_true(p.total_bytes <= p.budget_bytes);
                assert_true(length == 0 || p.engine.max_model_len == length);
                assert_true((int64_t)p.engine.n_blocks * p.engine.block_size >= p.engine.max_model_len);
                continue;
            }
            assert_int_equal(s, ERR_PLAN);
            n_helped += err.param[0] != 0;
            n_hopeless += err.param[0] == 0;
            if (!err.param[0]) continue;
            const char *advice = strstr(err.text, err.param);
            assert_non_null(advice);
            assert_non_null(strstr(advice, " would fit"));
            check_advice(&in, err.param, advice + strlen(err.param) + 1);
            for (int i = 0; i < COUNT(flags); i++) n_flags[i] += !strcmp(flags[i], err.param);
        }
    }
    assert_true(n_fit > 10 && n_helped > 10 && n_hopeless > 0);
    for (int i = 0; i < COUNT(n_flags); i++) assert_true(n_flags[i] > 0);
}

/* All is small already: only the fraction is left. */
static void test_fraction_is_the_last_help(void **state)
{
    Plan p;
    Error err = { 0 };
    PlanInput in = input_of("nano", 8000 * MB);
    in.engine = (EngineOptions){
        .max_num_seqs = 1, .max_num_batched_tokens = 16, .max_model_len = 256, .max_request_bytes = MB
    };
    make(&p, &in);
    in.available_bytes = (uint64_t)((double)p.total_bytes / 0.949);
    assert_int_equal(plan_make(&p, &in, &err), ERR_PLAN);
    assert_string_equal(err.param, "--gpu-memory-utilization");
    assert_non_null(strstr(err.text, "--gpu-memory-utilization 0.95 would fit"));
    check_advice(&in, err.param, "0.95");
    in.available_bytes = p.total_bytes;
    error_clear(&err);
    assert_int_equal(plan_make(&p, &in, &err), ERR_PLAN);
    assert_string_equal(err.param, "");
}

/* A length nobody asked for shrinks to what fits; one beyond the model is refused. */
static void test_length(void **state)
{
    Plan roomy, tight, p;
    Error err = { 0 };
    PlanInput in = input_of("nano", 8000 * MB);
    in.engine.max_num_seqs = 1;
    in.engine.max_request_bytes = MB;
    make(&roomy, &in);
    in.available_bytes = (uint64_t)((double)(roomy.total_bytes - roomy.token_cache_bytes / 2) / 0.9);
    make(&tight, &in);
    assert_in_range(tight.engine.max_model_len, 1024, 4095);
    assert_int_equal(tight.engine.max_model_len % 16, 0);
    in.engine.max_model_len = tight.engine.max_model_len + 16; /* it was the longest */
    assert_int_equal(plan_make(&p, &in, &err), ERR_PLAN);
    assert_string_equal(err.param, "--max-model-len");
    error_clear(&err);
    in.engine.max_model_len = 5000;
    assert_int_equal(plan_make(&p, &in, &err), ERR_USAGE);
    assert_string_equal(err.param, "--max-model-len");
}

static void test_drafter_counts(void **state)
{
    Drafter *d;
    Plan without, with;
    FakeDrafterOptions o = { .model = { .vocab_size = 4096 }, .wants_features = true };
    assert_int_equal(fake_drafter_open(&d, &o, NULL), OK);
    PlanInput in = input_of("nano", 8000 * MB);
    make(&without, &in);
    in.drafter = drafter_needs(d);
    make(&with, &in);
    assert_int_equal(with.block_bytes - without.block_bytes, 16 * sizeof(int32_t));
    assert_int_equal(with.pass_bytes - without.pass_bytes,
                     512 * (2 + 1) * 256 * sizeof(float)); /* two taps, last hidden */
    drafter_close(d);
}

/* Half the cache and a scale a row; states and weights as they were. A context that did not fit fits. */
static void test_fp8_cache(void **state)
{
    Plan bf16, fp8;
    PlanInput in = input_of("nano-plain", 8000 * MB);
    in.engine.max_request_bytes = 8 * MB; /* else it gives way to the cache */
    make(&bf16, &in);
    in.model.kv_dtype = DT_F8_E4M3;
    make(&fp8, &in);
    assert_int_equal(bf16.block_bytes % (2 * 64), 0); /* heads of 64 */
    assert_int_equal(fp8.block_bytes, bf16.block_bytes / (2 * 64) * (64 + 4));
    assert_int_equal(fp8.weight_bytes, bf16.weight_bytes);
    assert_int_equal(bf16.total_bytes - fp8.total_bytes,
                     bf16.token_cache_bytes - fp8.token_cache_bytes + bf16.page_bytes - fp8.page_bytes);

    in.available_bytes = fp8.total_bytes / 9 * 10 + 5 * MB;
    in.engine.n_blocks = bf16.engine.n_blocks;
    make(&fp8, &in);
    in.model.kv_dtype = DT_NONE;
    assert_int_equal(plan_make(&bf16, &in, NULL), ERR_PLAN);
}

static void test_missing_model(void **state)
{
    Plan p;
    Error err = { 0 };
    PlanInput in = { .dir = "/nonexistent", .available_bytes = MB };
    assert_int_equal(plan_make(&p, &in, &err), ERR_NOT_FOUND);
}

/* Threads, texts and the program count on a host, and neither they nor its pages on a device. */
static void test_host(void **state)
{
    Plan bare, with, device;
    PlanInput in = input_of("nano", 8000 * MB);
    make(&bare, &in);
    assert_int_equal(bare.worker_bytes + bare.text_bytes + bare.program_bytes, 0);
    in.host = (PlanHost){ .n_workers = 4, .worker_bytes = 16 * MB, .text_bytes = MB, .n_fronts = 3 };
    make(&with, &in);
    assert_true(with.worker_bytes >= 16 * MB && with.text_bytes > MB && with.program_bytes > 0);
    assert_int_equal(with.total_bytes - bare.total_bytes, with.worker_bytes + with.text_bytes + with.program_bytes);
    in.host.is_device = true;
    make(&device, &in);
    assert_int_equal(device.total_bytes, bare.total_bytes - bare.page_bytes);
    assert_true(bare.page_bytes > 0);
}

static void test_kinds_add_up(void **state)
{
    Plan p;
    PlanKind kinds[PLAN_MAX_KINDS];
    PlanInput in = input_of("nano", 8000 * MB);
    in.host = (PlanHost){ .n_workers = 2, .worker_bytes = 8 * MB, .text_bytes = MB, .n_fronts = 3 };
    in.drafter.bytes = 3 * MB;
    make(&p, &in);
    size_t sum = 0;
    int n = plan_kinds(&p, kinds);
    for (int i = 0; i < n; i++) sum += kinds[i].bytes;
    assert_int_equal(sum, p.total_bytes);
    assert_string_equal(kinds[n - 1].name, "requests"); /* the one that does not last */
}

static void test_text(void **state)
{
    Plan p;
    Buf text;
    PlanInput in = input_of("nano", 1000 * MB);
    make(&p, &in);
    buf_init(&text, 10000);
    plan_text(&p, &text);
    assert_false(text.failed);
    assert_non_null(strstr(text.data, "weights"));
    assert_non_null(strstr(text.data, "context of 4096 tokens"));
    assert_non_null(strstr(text.data, "8 requests at a time, 8 of full length"));
    const char *bar = strchr(text.data, '['), *end = strchr(text.data, ']');
    assert_true(bar && end && end - bar == 62); /* 60 cells and the mark between them */
    assert_int_equal(strchr(bar, '|') - bar - 1, 54); /* nine tenths */
    assert_non_null(memchr(bar, 'C', (size_t)(end - bar)));
    buf_free(&text);
}

static void test_json(void **state)
{
    Plan p;
    Buf text;
    json_t *plan;
    PlanKind kinds[PLAN_MAX_KINDS];
    PlanInput in = input_of("nano", 1000 * MB);
    make(&p, &in);
    buf_init(&text, 10000);
    plan_json(&p, &text);
    assert_int_equal(json_parse(&plan, text.data, text.len, "the plan", NULL), OK);
    for (int i = 0, n = plan_kinds(&p, kinds); i < n; i++)
        assert_int_equal(json_integer_value(json_object_get(plan, kinds[i].name)), kinds[i].bytes);
    assert_int_equal(json_integer_value(json_object_get(plan, "lasting")), p.lasting_bytes);
    assert_int_equal(json_integer_value(json_object_get(plan, "total")), p.total_bytes);
    assert_int_equal(json_integer_value(json_object_get(plan, "cache_tokens")), 8 * 4096);
    json_decref(plan);
    buf_free(&text);
}

/* ---- the machine ---- */

static void put(const char *root, const char *dir, const char *name, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", root, dir);
    assert_int_equal(dir_make(path, NULL), OK);
    snprintf(path, sizeof path, "%s%s/%s", root, dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), NULL), OK);
}

static void test_available(void **state)
{
    char root[] = "/tmp/tandem_plan_XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    assert_int_equal(plan_available_at(root), 0); /* nothing is known: nothing is promised */
    put(root, "/proc", "meminfo", "MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\n");
    assert_int_equal(plan_available_at(root), 1000 * 1024);
    put(root, "/proc/self", "cgroup", "0::/user.slice/app\n");
    put(root, "/sys/fs/cgroup/user.slice/app", "memory.max", "max\n");
    put(root, "/sys/fs/cgroup/user.slice", "memory.max", "600000\n");
    assert_int_equal(plan_available_at(root), 600000);
    put(root, "/sys/fs/cgroup/user.slice", "memory.current", "500000\n");
    put(root, "/sys/fs/cgroup/user.slice", "memory.stat", "anon 100000\nfile 400000\ninactive_file 300000\n");
    assert_int_equal(plan_available_at(root), 400000); /* file pages that can go do not count */
    put(root, "/sys/fs/cgroup/user.slice/app", "memory.max", "100000\n");
    put(root, "/sys/fs/cgroup/user.slice/app", "memory.current", "200000\n");
    assert_int_equal(plan_available_at(root), 0);
    put(root, "/proc/self", "cgroup", "12:cpu:/x\n0::/\n"); /* its own root, as in a container */
    put(root, "/sys/fs/cgroup", "memory.max", "777\n");
    assert_int_equal(plan_available_at(root), 777);
    /* The older hierarchy: its root says that there is no limit by a huge number; a group's stat knows of those above. */
    put(root, "/sys/fs/cgroup", "memory.max", "max\n");
    put(root, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(plan_available_at(root), 1000 * 1024);
    put(root, "/proc/self", "cgroup", "4:memory:/a/b\n0::/\n");
    put(root, "/sys/fs/cgroup/memory/a/b", "memory.limit_in_bytes", "900000\n");
    put(root, "/sys/fs/cgroup/memory/a/b", "memory.usage_in_bytes", "300000\n");
    assert_int_equal(plan_available_at(root), 600000);
    put(root, "/sys/fs/cgroup/memory/a/b", "memory.stat", "total_inactive_file 200000\nhierarchical_memory_limit 800000\n");
    assert_int_equal(plan_available_at(root), 700000);
    put(root, "/sys/fs/cgroup/memory/a", "memory.limit_in_bytes", "500000\n");
    assert_int_equal(plan_available_at(root), 500000);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void test_this_machine(void **state)
{
    assert_true(plan_available() > 10 * MB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),      cmocka_unit_test(test_reality),
        cmocka_unit_test(test_refusals_help), cmocka_unit_test(test_fraction_is_the_last_help),
        cmocka_unit_test(test_length),        cmocka_unit_test(test_drafter_counts),
        cmocka_unit_test(test_fp8_cache),
        cmocka_unit_test(test_missing_model), cmocka_unit_test(test_text),
        cmocka_unit_test(test_host),          cmocka_unit_test(test_kinds_add_up),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_available),     cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
