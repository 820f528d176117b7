/* tandem: the table of commands. Everything that can go wrong at start-up comes up to here as one sentence. */
#include "cli/command.h"

#include "base/log.h"
#include "cli/options_help.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static Status dispatch(const Options *o, Error *err)
{
    switch (o->command) {
    case CMD_RUN: return command_run(o, err);
    case CMD_CHAT: return command_chat(o, err);
    case CMD_SERVE: return command_serve(o, err);
    case CMD_VERIFY: return command_verify(o, err);
    case CMD_LOGITS: return command_logits(o, err);
    case CMD_TOKENIZE: return command_tokenize(o, err);
    case CMD_BENCH: return command_bench(o, err);
    case CMD_PLAN: return command_plan(o, err);
    case CMD_PERPLEXITY: return command_perplexity(o, err);
    case CMD_MAN: help_man(stdout); return OK;
    case CMD_COMPLETION: help_completion(stdout); return OK;
    }
    return error_set(err, ERR_USAGE, "which command?");
}

int main(int argc, char **argv)
{
    Options options;
    Error err = { 0 };
    bool done = false;
    signal(SIGPIPE, SIG_IGN); /* a reader that leaves is an error of write(), not the end of the process */
    Status s = options_parse(&options, argc, argv, environ, stdout, stderr, &done, &err);
    if (!s && !done) s = dispatch(&options, &err);
    if (!s && (fflush(stdout) != 0 || ferror(stdout)))
        s = error_set(&err, ERR_IO, "cannot write to standard output: %s", strerror(errno));
    bool reader_left = s == ERR_IO && errno == EPIPE; /* as in `| head`: nothing to tell */
    if (s && !reader_left) fprintf(stderr, "tandem: %s\n", err.text);
    if (s == ERR_USAGE && argc >= 2) fprintf(stderr, "tandem --help shows the commands, tandem COMMAND --help their flags\n");
    options_free(&options);
    return command_exit_code(s);
}
