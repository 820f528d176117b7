/* The /commands of tandem chat: a row each, so that /help says what there is. */
#include "cli/chat_impl.h"

#include "cli/terminal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct ChatCommand {
    const char *name, *argument, *help;
    void      (*run)(Chat *c, const char *argument); /* "" = none given */
} ChatCommand;

void chat_remark(const char *format, ...)
{
    va_list args;
    bool dims = terminal_has_colors(STDERR_FILENO);
    fflush(stdout);
    if (dims) fputs("\033[2m", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs(dims ? "\033[0m\n" : "\n", stderr);
}

static json_t *system_message(const Chat *c)
{
    json_t *first = json_array_get(c->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    return role && !strcmp(role, "system") ? first : NULL;
}

static void set_system(Chat *c, const char *text)
{
    json_t *content = json_string(text), *old = system_message(c);
    if (!content) {
        chat_remark("that text is not valid UTF-8");
    } else if (old) {
        json_object_set_new(old, "content", content);
        chat_remark("the system message was replaced");
    } else {
        json_array_insert_new(c->messages, 0, json_pack("{s:s, s:o}", "role", "system", "content", content));
        chat_remark("the system message was set");
    }
}

static void run_system(Chat *c, const char *text)
{
    if (*text) {
        set_system(c, text);
    } else if (system_message(c)) {
        json_array_remove(c->messages, 0);
        chat_remark("the system message was removed");
    } else {
        chat_remark("there is no system message; /system TEXT sets one");
    }
}

static void list_methods(const Chat *c)
{
    const char *now = c->no_speculation ? "none" : c->draft_method[0] ? c->draft_method : "auto";
    EngineStats stats = engine_stats(c->stack->engine);
    chat_remark("drafts: %s; possible: auto, none", now);
    for (int i = 0; i < stats.n_methods; i++) {
        const MethodStats *m = &stats.methods[i];
        chat_remark("    %s%s%s", m->name, m->off[0] ? ", off: " : "", m->off);
    }
}

static void run_method(Chat *c, const char *name)
{
    int32_t n;
    const DraftMethod *methods = engine_methods(c->stack->engine, &n);
    bool is_known = !strcmp(name, "auto") || !strcmp(name, "none");
    for (int32_t i = 0; i < n; i++) is_known |= !strcmp(name, methods[i].name);
    if (is_known) {
        c->no_speculation = !strcmp(name, "none");
        bool is_name = strcmp(name, "auto") && !c->no_speculation;
        snprintf(c->draft_method, sizeof c->draft_method, "%s", is_name ? name : "");
    } else if (*name) {
        chat_remark("this model has no drafts called \"%s\"", name);
    }
    list_methods(c);
}

static void run_temperature(Chat *c, const char *text)
{
    if (*text) {
        char *end;
        SampleParams p = c->params;
        Error err = { .status = OK };
        errno = 0;
        p.temperature = strtof(text, &end);
        bool is_number = !errno && end != text && !*end;
        if (!is_number) chat_remark("temperature must be a number, got \"%s\"", text);
        else if (sample_params_check(&p, c->stack->config.vocab_size, &err)) chat_remark("%s", err.text);
        else c->params = p;
    }
    chat_remark("temperature: %g", (double)c->params.temperature);
}

static void run_clear(Chat *c, const char *argument)
{
    json_t *system = json_incref(system_message(c));
    json_array_clear(c->messages);
    if (system) json_array_append_new(c->messages, system);
    chat_remark("a new conversation begins");
}

static void run_quit(Chat *c, const char *argument)
{
    c->leaves = true;
}

static void run_help(Chat *c, const char *argument);

static const ChatCommand commands[] = {
    { "help", "", "this", run_help },
    { "system", " TEXT", "system message from now on; without TEXT: none", run_system },
    { "method", " NAME", "how answers are drafted: auto, none or a name; without NAME: what there is", run_method },
    { "temperature", " T", "0 = always the most likely token; without T: what it is", run_temperature },
    { "clear", "", "begin a new conversation; the system message stays", run_clear },
    { "quit", "", "leave, as Ctrl-D does; also /exit", run_quit },
};

static void run_help(Chat *c, const char *argument)
{
    for (int i = 0; i < COUNT(commands); i++) {
        char left[32];
        snprintf(left, sizeof left, "/%s%s", commands[i].name, commands[i].argument);
        chat_remark("    %-16s %s", left, commands[i].help);
    }
    chat_remark("    %-16s %s", "//TEXT", "send a text that begins with a slash");
    chat_remark("Ctrl-C stops an answer; once more at the prompt leaves. Alt-Enter breaks a line, a pasted text is one "
                "message.");
}

void chat_command(Chat *c, const char *line)
{
    const char *name = line + 1;
    size_t n = strcspn(name, " \t\n");
    const char *argument = name + n + strspn(name + n, " \t\n");
    char trimmed[64];
    for (int i = 0; i < COUNT(commands); i++) {
        const ChatCommand *command = &commands[i];
        if (strlen(command->name) != n || strncmp(name, command->name, n) != 0) continue;
        size_t length = strlen(argument);
        while (length && strchr(" \t\n", argument[length - 1])) length--;
        if (command->run != run_system && length < sizeof trimmed) { /* blanks behind a name or number mean nothing */
            snprintf(trimmed, sizeof trimmed, "%.*s", (int)length, argument);
            argument = trimmed;
        }
        command->run(c, argument);
        return;
    }
    if (n == 4 && !strncmp(name, "exit", n)) run_quit(c, "");
    else chat_remark("there is no command \"/%.*s\"; /help lists them, //TEXT sends \"/TEXT\"", (int)n, name);
}
