/* A conversation and its settings: what chat.c runs and the /commands of chat_commands.c change. */
#pragma once

#include "cli/line.h"
#include "cli/markdown.h"
#include "cli/session.h"

typedef struct Chat {
    Stack       *stack;
    json_t      *messages;      /* system message first, if there is one */
    SampleParams params;
    bool         no_speculation;
    char         draft_method[24]; /* "" = whichever pays */
    Buf          answer;        /* as the model wrote it: part of the next prompt */
    Buf          shown;         /* the same for the terminal, the last piece */
    Markdown     markdown;
    bool         is_terminal;   /* standard output is one */
    bool         leaves;        /* /quit */
} Chat;

/* Lines that begin with a slash. Says what it did or what is wrong on stderr; never fails the chat. */
void chat_command(Chat *c, const char *line);

/* A remark on stderr, dimmed where there are colours. */
void chat_remark(const char *format, ...) __attribute__((format(printf, 1, 2)));

Status chat_add_message(Chat *c, const char *role, const char *text, Error *err);
